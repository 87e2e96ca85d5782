package shareable

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

const (
	scriptName = "script"
	scriptWait = 2 * time.Second
)

// scriptedOwner is an owner that does what a test tells it, one frame at a time.
type scriptedOwner struct {
	t     *testing.T
	dev   *vmm.Device
	rng   *vmm.Range
	gran  uint64
	c     *wire.Conn
	raw   *net.UnixConn
	obj   wire.Object
	page  []byte
	pages []int // the fds of the control page and the wake socket
	wake  *wakeSender
	ids   uint64
	kept  bool // another owner takes its place
}

// pair is two ends of a connection that keeps packets apart.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	return ends[0], ends[1]
}

// memfd is a memory file of n bytes with seals.
func memfd(t *testing.T, n int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("page", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, n))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	require.NoError(t, err)
	return fd
}

const allSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL

// newScriptedOwner makes an owner with a range of max chunks, and the reader's end.
func newScriptedOwner(t *testing.T, chunks uint64) (*scriptedOwner, *net.UnixConn) {
	t.Helper()
	return newScriptedOwnerOn(t, pageDevice(t), chunks, uint64(os.Getpagesize()), vmm.ShareFD|vmm.ShareReadOnly)
}

func newScriptedOwnerOn(t *testing.T, dev *vmm.Device, chunks, gran uint64, share vmm.Share) (*scriptedOwner, *net.UnixConn) {
	t.Helper()
	near, far := pair(t)
	c, err := wire.NewConn(near)
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	rng, err := dev.NewRange(vmm.RangeOptions{Max: chunks * gran, Chunk: gran, Share: share})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rng.Close()) })
	s := &scriptedOwner{t: t, dev: dev, rng: rng, gran: gran, c: c, raw: near}
	s.obj = wire.Object{
		ID: 7, Max: rng.Max(), Generation: 1, State: wire.StateLive, Access: wire.AccessRead,
		Elem: wire.Elem{Size: 1}, Instance: [16]byte{1, 2, 3}, Name: scriptName, Meta: []byte("meta"),
	}
	fd := memfd(t, pageBytes, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	s.page, err = unix.Mmap(fd, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL)
	require.NoError(t, err)
	readOnly, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	s.wake, err = newWakeSender()
	require.NoError(t, err)
	s.pages = []int{readOnly, s.wake.reader}
	t.Cleanup(func() {
		require.NoError(t, unix.Munmap(s.page))
		s.wake.close()
		_ = unix.Close(readOnly)
	})
	binary.LittleEndian.PutUint32(s.page[atMagic:], pageMagic)
	binary.LittleEndian.PutUint32(s.page[atVersion:], pageVersion)
	copy(s.page[atInstance:], s.obj.Instance[:])
	binary.LittleEndian.PutUint64(s.page[atObject:], s.obj.ID)
	s.generation(1)
	return s, far
}

func (s *scriptedOwner) generation(n uint64) { storeWord(s.page, atGeneration, n) }

// done publishes n bytes.
func (s *scriptedOwner) done(n uint64) {
	storeWord(s.page, atDone, n)
	s.notify()
}

func (s *scriptedOwner) notify() { s.wake.send() }

func (s *scriptedOwner) write(t wire.Type, request uint32, payload []byte, fds ...int) {
	s.t.Helper()
	require.NoError(s.t, s.c.Write(t, request, 0, payload, fds...))
}

// expect reads a frame of a type.
func (s *scriptedOwner) expect(t wire.Type) wire.Frame {
	s.t.Helper()
	f, err := s.c.Read()
	require.NoError(s.t, err)
	require.Equal(s.t, t, f.Type, "%v", f.Type)
	return f
}

func (s *scriptedOwner) hello() {
	s.t.Helper()
	backend := wire.BackendHost
	if s.dev.Driver().Name() == "cuda" {
		backend = wire.BackendCUDA
	}
	hello := wire.Hello{Instance: s.obj.Instance, Backend: backend, PID: 1, Granularity: s.gran}
	if s.kept {
		hello.Features = wire.FeatureKept
	}
	s.write(wire.TypeHello, 0, hello.Append(nil))
	f := s.expect(wire.TypeHello)
	_, err := wire.DecodeHello(f.Payload)
	require.NoError(s.t, err)
}

// accept replies to what an attaching reader asks.
func (s *scriptedOwner) accept() {
	s.t.Helper()
	s.hello()
	f := s.expect(wire.TypeAttach)
	s.write(wire.TypeObject, f.Request, s.obj.Append(nil), s.pages...)
}

// grow appends whole chunks, filled with their number, to the range.
func (s *scriptedOwner) grow(n int) {
	s.t.Helper()
	for range n {
		b := make([]byte, s.gran)
		for i := range b {
			b[i] = byte(s.rng.Len()/s.gran + 1)
		}
		require.NoError(s.t, s.rng.Append(b))
	}
}

// records exports the chunks [from, from+n) of the range under fresh ids.
func (s *scriptedOwner) records(from, n int) (c wire.Chunks, fds []int) {
	s.t.Helper()
	c = wire.Chunks{Object: s.obj.ID, Generation: loadWord(s.page, atGeneration)}
	for _, seg := range s.rng.Segments()[from : from+n] {
		chunk, err := seg.Chunk()
		require.NoError(s.t, err)
		fd, err := chunk.Export()
		require.NoError(s.t, err)
		require.NoError(s.t, chunk.Close())
		s.ids++
		c.Records = append(c.Records, wire.Chunk{ID: s.ids, Offset: uint64(seg.Addr - s.rng.Ptr()), Size: seg.Size})
		fds = append(fds, fd)
	}
	return c, fds
}

// chunks sends chunks [from, from+n).
func (s *scriptedOwner) chunks(from, n int) {
	s.t.Helper()
	c, fds := s.records(from, n)
	s.send(c, fds)
}

// send sends a CHUNKS frame and closes its fds here.
func (s *scriptedOwner) send(c wire.Chunks, fds []int) {
	s.t.Helper()
	s.write(wire.TypeChunks, 0, c.Append(nil), fds...)
	for _, fd := range fds {
		require.NoError(s.t, unix.Close(fd))
	}
}

func (s *scriptedOwner) ack() wire.Ack {
	s.t.Helper()
	f := s.expect(wire.TypeAck)
	a, err := wire.DecodeAck(f.Payload)
	require.NoError(s.t, err)
	return a
}

// gone waits for the reader to close the connection, whatever it says before.
func (s *scriptedOwner) gone() {
	s.t.Helper()
	for {
		f, err := s.c.Read()
		if err != nil {
			require.True(s.t, disconnected(err), "%v", err)
			return
		}
		require.NoError(s.t, f.Close())
	}
}

// viewed is a view that the owner has accepted, with nothing mapped yet.
func viewed(t *testing.T, s *scriptedOwner, far *net.UnixConn, o AttachOptions) *View {
	t.Helper()
	return viewedOn(t, s, far, o, pageDevice(t))
}

func viewedOn(t *testing.T, s *scriptedOwner, far *net.UnixConn, o AttachOptions, dev *vmm.Device) *View {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = scriptWait
	}
	type answer struct {
		v   *View
		err error
	}
	got := make(chan answer, 1)
	go func() {
		v, err := AttachConn(context.Background(), far, scriptName, dev, o)
		got <- answer{v, err}
	}()
	s.accept()
	a := <-got
	require.NoError(t, a.err)
	t.Cleanup(func() { require.NoError(t, a.v.Close()) })
	return a.v
}

// ended waits until the view has let go of its owner.
func ended(t *testing.T, v *View) error {
	t.Helper()
	err := v.Wait(t.Context(), v.Max())
	require.Error(t, err)
	return err
}

// openFDs counts this process's descriptors, so a test that calls it is not parallel.
func openFDs(t *testing.T) int {
	t.Helper()
	settled(t)
	return len(openFiles(t))
}

// openFiles is each descriptor of this process with its file. One is that by which they are listed.
func openFiles(t *testing.T) (files []string) {
	t.Helper()
	const dir = "/proc/self/fd/"
	all, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range all {
		to, _ := os.Readlink(dir + e.Name()) // it may be closed by now
		files = append(files, e.Name()+" "+to)
	}
	return files
}

// staysOpen waits until this process has at most n descriptors: no call waits for the close of a
// connection.
func staysOpen(t *testing.T, n int) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log(strings.Join(openFiles(t), "\n"))
		}
	}()
	soon(t, fmt.Sprintf("%d descriptors are open", n), func() bool { return openFDs(t) <= n }) // fewer: memory of earlier tests was freed
}

// pageDevice is vmmtest.Device with the granularity of a page.
func pageDevice(t *testing.T, hooks ...func(drivertest.Call) error) *vmm.Device {
	t.Helper()
	counted := drivertest.Inject(host.New(host.Config{Granularity: 4096}), func(c drivertest.Call) error {
		for _, h := range hooks {
			if err := h(c); err != nil {
				return err
			}
		}
		return nil
	})
	dev, err := vmm.OpenDriver(counted, 0)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, dev.Close())
		require.NoError(t, counted.Balanced())
	})
	return dev
}

func contextIn(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	return ctx, cancel
}
