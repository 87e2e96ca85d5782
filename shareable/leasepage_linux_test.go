package shareable

import (
	"encoding/binary"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

func mapPage(t *testing.T, fd int) []byte {
	t.Helper()
	b, err := unix.Mmap(fd, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

// hostileLease is a writer that does what a test likes before MAPPED.
func hostileLease(t *testing.T, do func(fd int, page []byte)) (*smallStore, *storedX, error) {
	t.Helper()
	s := newSmallStore(t, Options{})
	x := s.object(4)
	x.grow(1)
	fd, err := x.LeasePage()
	require.NoError(t, err)
	do(fd, mapPage(t, fd))
	err = x.StartLease()
	require.NoError(t, unix.Close(fd))
	return s, x, err
}

// A writer that has changed what protects readers gets no lease, and the next one does.
func TestLeasePageTampered(t *testing.T) {
	for name, do := range map[string]func(fd int, page []byte){
		"no more seals": func(fd int, _ []byte) { seal(t, fd, unix.F_SEAL_SEAL) },
		"another magic": func(_ int, page []byte) { page[atMagic]++ },
		"a version":     func(_ int, page []byte) { page[atVersion]++ },
		"an instance":   func(_ int, page []byte) { page[atInstance]++ },
		"an object":     func(_ int, page []byte) { page[atObject]++ },
	} {
		t.Run(name, func(t *testing.T) {
			before := openFDs(t)
			s, x, err := hostileLease(t, do)
			require.ErrorAs(t, err, new(*wire.ProtocolError))
			require.ErrorAs(t, x.StartLease(), new(*wire.ProtocolError)) // it has no page any more
			v := s.attach(AttachOptions{Unsealed: true})
			w := x.lease()
			w.Publish(10)
			x.Wrote()
			wait(t, v, 10)
			require.NoError(t, v.Close())
			require.NoError(t, w.Close())
			require.NoError(t, x.Close())
			require.NoError(t, s.srv.Close())
			staysOpen(t, before)
		})
	}
}

// After MAPPED neither the writer nor anybody else can map the page for writing, or change
// the file.
func TestLeasePageIsSealed(t *testing.T) {
	t.Parallel()
	s := newSmallStore(t, Options{})
	x := s.object(4)
	fd, err := x.LeasePage()
	require.NoError(t, err)
	defer unix.Close(fd) //nolint:errcheck // in a test
	require.ErrorIs(t, unix.Ftruncate(fd, 0), unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(fd, 2*pageBytes), unix.EPERM)
	page := mapPage(t, fd)
	require.NoError(t, x.StartLease())
	_, err = unix.Mmap(fd, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EPERM)
	_, err = unix.Pwrite(fd, []byte("x"), 0)
	require.ErrorIs(t, err, unix.EPERM)
	require.ErrorIs(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, pageBytes), unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(fd, 0), unix.EPERM)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	require.ErrorIs(t, err, unix.EPERM)
	_, err = forStore{}.OpenWriterPage(fd, s.srv.Instance(), x.ID())
	require.ErrorIs(t, err, ErrProtocol)
	storeWord(page, atDone, 0) // its own mapping stays
	require.False(t, writable(t, x.own().page.fd))
}

// Whatever a writer stores, readers see no more than is mapped, and it costs them nothing but
// what this writer could have shown them.
func TestWriterLies(t *testing.T) {
	t.Parallel()
	s := newSmallStore(t, Options{})
	x := s.object(8)
	x.grow(2)
	v := s.attach(AttachOptions{Unsealed: true})
	soon(t, "memory", func() bool { return v.Cap() == 2*smallChunk })
	of := pageOf(v)
	fd, err := x.LeasePage()
	require.NoError(t, err)
	page := mapPage(t, fd)
	require.NoError(t, unix.Close(fd))
	require.NoError(t, x.StartLease())
	pageAfter(t, v, of)
	c := greeted(t, s.srv.Path())
	for _, n := range []uint64{1 << 63, math.MaxUint64, 2*smallChunk + 1} {
		storeWord(page, atDone, n)
		storeWord(page, atQueued, n)
		require.Equal(t, uint64(2*smallChunk), v.Len())
		require.LessOrEqual(t, v.Queued(), v.Max())
		require.Equal(t, uint64(2*smallChunk), x.length())
		require.NoError(t, c.Write(wire.TypeStat, 1, 0, wire.Stat{Name: "x"}.Append(nil)))
		f, err := c.Read()
		require.NoError(t, err)
		stat, err := wire.DecodeObject(f.Payload)
		require.NoError(t, err)
		require.Equal(t, uint64(2*smallChunk), stat.Length)
		require.LessOrEqual(t, stat.Queued, stat.Max)
	}
	// It takes back what it has shown, and seals less.
	storeWord(page, atDone, 0)
	storeWord(page, atGeneration, 1<<40)
	storeWord(page, atState, 99)
	require.Equal(t, uint64(2*smallChunk), v.Len())
	require.NoError(t, x.Seal(serve.Seal{Length: 10}))
	soon(t, "sealed", v.Sealed)
	require.NoError(t, v.Err())
	require.Equal(t, uint64(10), v.Len())
	require.Equal(t, x.mem[:10], read(t, v, 10))
}

// The words that never change are the writer's as well. Readers keep their connection.
func TestWriterWrecksItsPage(t *testing.T) {
	t.Parallel()
	s := newSmallStore(t, Options{})
	x := s.object(8)
	x.grow(2)
	v := s.attach(AttachOptions{Unsealed: true})
	soon(t, "memory", func() bool { return v.Cap() == 2*smallChunk })
	// The reader hears of the page after it is wrecked.
	ses, of := sessionOf(t, s.srv), pageOf(v)
	fd, err := x.LeasePage()
	require.NoError(t, err)
	page := mapPage(t, fd)
	require.NoError(t, unix.Close(fd))
	ses.sending.Lock()
	unlock := sync.OnceFunc(ses.sending.Unlock)
	defer unlock()
	require.NoError(t, x.StartLease())
	for i := range page[:64] {
		page[i] = 0xff
	}
	unlock()
	pageAfter(t, v, of)
	of = pageOf(v)
	x.EndLease()
	pageAfter(t, v, of)
	require.NoError(t, v.Err())
	of = pageOf(v)
	w := x.lease()
	pageAfter(t, v, of)
	w.Publish(10)
	x.Wrote()
	wait(t, v, 10)
}

func TestOpenWriterPageRefuses(t *testing.T) {
	instance := [16]byte{1, 2, 3}
	good := func(n int64, seals int) int {
		fd := memfd(t, n, 0)
		page := make([]byte, atObject+8)
		binary.LittleEndian.PutUint32(page[atMagic:], pageMagic)
		binary.LittleEndian.PutUint32(page[atVersion:], pageVersion)
		copy(page[atInstance:], instance[:])
		binary.LittleEndian.PutUint64(page[atObject:], 7)
		_, err := unix.Pwrite(fd, page, 0)
		require.NoError(t, err)
		seal(t, fd, seals)
		return fd
	}
	before := openFDs(t)
	for name, make := range map[string]func() int{
		"no file in memory": func() int {
			fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
			require.NoError(t, err)
			return fd
		},
		"it may shrink":      func() int { return good(pageBytes, unix.F_SEAL_GROW) },
		"it may grow":        func() int { return good(pageBytes, unix.F_SEAL_SHRINK) },
		"two pages":          func() int { return good(2*pageBytes, leaseSeals) },
		"half a page":        func() int { return good(pageBytes/2, leaseSeals) },
		"sealed for writing": func() int { return good(pageBytes, leaseSeals|unix.F_SEAL_FUTURE_WRITE) },
		"zeros":              func() int { return memfd(t, pageBytes, leaseSeals) },
	} {
		t.Run(name, func(t *testing.T) {
			fd := make()
			_, err := forStore{}.OpenWriterPage(fd, instance, 7)
			require.ErrorIs(t, err, ErrProtocol)
			require.NoError(t, unix.Close(fd))
		})
	}
	fd := good(pageBytes, leaseSeals)
	_, err := forStore{}.OpenWriterPage(fd, instance, 8)
	require.ErrorIs(t, err, ErrProtocol)
	w, err := forStore{}.OpenWriterPage(fd, instance, 7)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	require.NoError(t, unix.Close(fd))
	_, err = forStore{}.OpenWriterPage(-1, instance, 7)
	require.ErrorIs(t, err, ErrProtocol)
	staysOpen(t, before)
}
