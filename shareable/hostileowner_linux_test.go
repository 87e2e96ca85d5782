package shareable

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

const (
	piecesize = 2 << 20 // the host's granularity
	firm      = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	firmPage  = firm | unix.F_SEAL_FUTURE_WRITE
)

// hostileOwner is an owner that does what a test tells it.
type hostileOwner struct {
	t    *testing.T
	c    *wire.Conn
	raw  *net.UnixConn
	o    wire.Object
	page []byte // to write to
	fd   int    // of the page, to send
	wake *wakeSender
}

func newHostileOwner(t *testing.T) (*hostileOwner, *net.UnixConn) {
	t.Helper()
	near, far := pair(t)
	c, err := wire.NewConn(near)
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(inTime)))
	k := &hostileOwner{t: t, c: c, raw: near}
	k.o = wire.Object{ID: 7, Max: 32 * piecesize, Generation: 3, State: wire.StateLive, Access: wire.AccessRead, Instance: [16]byte{1, 2}, Name: "x"}
	k.fd = memory(t, pageBytes, 0)
	k.page, err = unix.Mmap(k.fd, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(k.page)) })
	seal(t, k.fd, firmPage)
	(&ownerPage{mem: k.page}).initWords(k.o.Instance, k.o.ID)
	word(k.page, atGeneration).Store(k.o.Generation)
	k.wake, err = newWakeSender()
	require.NoError(t, err)
	t.Cleanup(k.wake.close)
	return k, far
}

// memory is a memory file that is closed when the test ends.
func memory(t *testing.T, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	require.NoError(t, unix.Ftruncate(fd, size))
	seal(t, fd, seals)
	return fd
}

func seal(t *testing.T, fd, seals int) {
	t.Helper()
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	require.NoError(t, err)
}

// special opens what is no memory; -1 where this machine has no such thing.
func special(t *testing.T, path string, flags int) int {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func (k *hostileOwner) send(of wire.Type, request uint32, body []byte, fds ...int) {
	k.t.Helper()
	require.NoError(k.t, k.c.Write(of, request, 0, body, fds...))
}

// packet sends bytes that Conn.Write would not.
func (k *hostileOwner) packet(b []byte, fds ...int) {
	k.t.Helper()
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	rc, err := k.raw.SyscallConn()
	require.NoError(k.t, err)
	require.NoError(k.t, rc.Control(func(fd uintptr) { err = sendRaw(int(fd), b, control) }))
	require.NoError(k.t, err)
}

func (k *hostileOwner) expect(of wire.Type) wire.Frame {
	k.t.Helper()
	f, err := k.c.Read()
	require.NoError(k.t, err)
	require.Equal(k.t, of, f.Type)
	return f
}

func (k *hostileOwner) hello() {
	k.t.Helper()
	k.send(wire.TypeHello, 0, wire.Hello{Backend: wire.BackendHost, Instance: k.o.Instance, Granularity: piecesize}.Append(nil))
	k.expect(wire.TypeHello)
}

func (k *hostileOwner) accept() {
	k.t.Helper()
	k.hello()
	f := k.expect(wire.TypeAttach)
	k.send(wire.TypeObject, f.Request, k.o.Append(nil), k.fd, k.wake.reader)
}

// records are n whole chunks from the i-th on.
func (k *hostileOwner) records(i, n int) wire.Chunks {
	c := wire.Chunks{Object: k.o.ID, Generation: k.o.Generation}
	for j := range n {
		c.Records = append(c.Records, wire.Chunk{ID: uint64(i + j + 1), Offset: uint64(i+j) * piecesize, Size: piecesize})
	}
	return c
}

// chunks sends good chunks.
func (k *hostileOwner) chunks(i, n int) {
	k.t.Helper()
	fds := make([]int, n)
	for j := range fds {
		fds[j] = memory(k.t, piecesize, firm)
	}
	k.send(wire.TypeChunks, 0, k.records(i, n).Append(nil), fds...)
}

// done publishes n bytes.
func (k *hostileOwner) done(n uint64) {
	word(k.page, atDone).Store(n)
	k.notify()
}

func (k *hostileOwner) notify() { k.wake.send() }

type attaching struct {
	v   *View
	err error
}

func begins(t *testing.T, far *net.UnixConn, dev *vmm.Device, o AttachOptions) <-chan attaching {
	got := make(chan attaching, 1)
	go func() {
		v, err := AttachConn(t.Context(), far, "x", dev, o)
		got <- attaching{v, err}
	}()
	return got
}

// viewOfTwoChunks is a view of two chunks, one of which is published.
func viewOfTwoChunks(t *testing.T, k *hostileOwner, far *net.UnixConn, dev *vmm.Device, o AttachOptions) *View {
	t.Helper()
	got := begins(t, far, dev, o)
	k.accept()
	a := <-got
	require.NoError(t, a.err)
	t.Cleanup(func() { require.NoError(t, a.v.Close()) })
	k.chunks(0, 2)
	k.expect(wire.TypeAck)
	k.done(piecesize)
	wait(t, a.v, piecesize)
	return a.v
}

// waitDetached waits until the view has detached from its owner.
func waitDetached(t *testing.T, v *View) error {
	t.Helper()
	_ = v.Wait(boundedContext(t), v.Max())
	require.Eventually(t, func() bool { return v.Err() != nil }, inTime, time.Millisecond)
	return v.Err()
}

// closeView closes a view, in a bounded time.
func closeView(t *testing.T, v *View) {
	t.Helper()
	require.NoError(t, v.CloseContext(boundedContext(t)))
}

// TestHostileChunks: what is no memory of the promised size, and a record that
// does not follow on the one before it, is not mapped; what was stays as it is.
func TestHostileChunks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(file, make([]byte, piecesize), 0o600))
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	good := func(t *testing.T) int { return memory(t, piecesize, firm) }
	files := map[string]func(*testing.T) int{
		"unsealed":     func(t *testing.T) int { return memory(t, piecesize, 0) },
		"may grow":     func(t *testing.T) int { return memory(t, piecesize, unix.F_SEAL_SHRINK) },
		"may shrink":   func(t *testing.T) int { return memory(t, piecesize, unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE) },
		"half as long": func(t *testing.T) int { return memory(t, piecesize/2, firm) },
		"a byte less":  func(t *testing.T) int { return memory(t, piecesize-1, firm) },
		"a page more":  func(t *testing.T) int { return memory(t, piecesize+4096, firm) },
		"empty":        func(t *testing.T) int { return memory(t, 0, firm) },
		"shrunk": func(t *testing.T) int {
			fd := memory(t, piecesize, 0)
			require.NoError(t, unix.Ftruncate(fd, 4096))
			seal(t, fd, firm)
			return fd
		},
		"a path to it": func(t *testing.T) int { return special(t, "/proc/self/fd/"+strconv.Itoa(good(t)), unix.O_PATH) },
		"write only":   func(t *testing.T) int { return special(t, "/proc/self/fd/"+strconv.Itoa(good(t)), unix.O_WRONLY) },
		"plain file":   func(t *testing.T) int { return special(t, file, unix.O_RDWR) },
		"fifo":         func(t *testing.T) int { return special(t, fifo, unix.O_RDWR) },
		"pipe": func(t *testing.T) int {
			var p [2]int
			require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
			t.Cleanup(func() { _, _ = unix.Close(p[0]), unix.Close(p[1]) })
			return p[0]
		},
		"huge pages": func(t *testing.T) int {
			fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
			if err != nil {
				return -1
			}
			t.Cleanup(func() { _ = unix.Close(fd) })
			require.NoError(t, unix.Ftruncate(fd, piecesize))
			seal(t, fd, firm)
			return fd
		},
	}
	for _, path := range []string{
		"/dev/zero", "/dev/null", "/dev/full", "/dev/random", "/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/ptmx",
		"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm", "/proc/self/mem", "/proc/self/maps", "/", "/dev/shm",
	} {
		files[path] = func(t *testing.T) int {
			if fd := special(t, path, unix.O_RDWR); fd >= 0 {
				return fd
			}
			return special(t, path, unix.O_RDONLY)
		}
	}
	type hostile struct {
		do   func(*testing.T, *hostileOwner)
		want error
	}
	cases := map[string]hostile{}
	for name, open := range files {
		cases[name] = hostile{func(t *testing.T, k *hostileOwner) {
			fd := open(t)
			if fd < 0 {
				t.Skip("not on this machine")
			}
			c := k.records(2, 2)
			k.send(wire.TypeChunks, 0, c.Append(nil), good(t), fd)
		}, vmm.ErrInvalid}
	}
	for name, change := range map[string]func(*wire.Chunks){
		"another object":      func(c *wire.Chunks) { c.Object++ },
		"another generation":  func(c *wire.Chunks) { c.Generation++ },
		"an old generation":   func(c *wire.Chunks) { c.Generation-- },
		"an overlap":          func(c *wire.Chunks) { c.Records[1].Offset -= piecesize },
		"an overlap in part":  func(c *wire.Chunks) { c.Records[1].Offset -= 4096 },
		"a gap":               func(c *wire.Chunks) { c.Records[1].Offset += piecesize },
		"a gap first":         func(c *wire.Chunks) { c.Records = []wire.Chunk{c.Records[1], c.Records[0]} },
		"an end past the end": func(c *wire.Chunks) { c.Records[1].Offset = 1 << 63; c.Records[1].Size = 1 << 63 },
		"2^63 bytes":          func(c *wire.Chunks) { c.Records[1].Size = 1 << 63 },
		"nearly 2^64 bytes":   func(c *wire.Chunks) { c.Records[1].Size = 1<<64 - piecesize },
		"over the maximum":    func(c *wire.Chunks) { c.Records[1].Size = 31 * piecesize },
		"no bytes":            func(c *wire.Chunks) { c.Records[1].Size = 0 },
		"half a granule":      func(c *wire.Chunks) { c.Records[1].Size = piecesize / 2 },
		"the same id":         func(c *wire.Chunks) { c.Records[1].ID = c.Records[0].ID },
		"a lower id":          func(c *wire.Chunks) { c.Records[0].ID = 9; c.Records[1].ID = 8 },
		"id 0":                func(c *wire.Chunks) { c.Records[0].ID = 0 },
		"an id of before":     func(c *wire.Chunks) { c.Records[0].ID = 2 },
	} {
		cases[name] = hostile{func(t *testing.T, k *hostileOwner) {
			c := k.records(2, 2)
			change(&c)
			k.send(wire.TypeChunks, 0, c.Append(nil), good(t), good(t))
		}, ErrProtocol}
	}
	frame := func(of wire.Type, body []byte, says uint16, has int) hostile {
		return hostile{func(t *testing.T, k *hostileOwner) {
			h := wire.Header{Major: 1, Type: of, FDs: says, Len: uint32(len(body)), Sequence: 4}
			k.packet(raw(h, body), nulls(t, has)...)
		}, ErrProtocol}
	}
	two := wire.Chunks{Object: 7, Generation: 3, Records: []wire.Chunk{{ID: 3, Offset: 4 << 20, Size: 2 << 20}, {ID: 4, Offset: 6 << 20, Size: 2 << 20}}}.Append(nil)
	for name, c := range map[string]hostile{
		"CHUNKS without fds":          frame(wire.TypeChunks, two, 0, 0),
		"CHUNKS of 2 without fds":     frame(wire.TypeChunks, two, 2, 0),
		"CHUNKS of 2 with 1":          frame(wire.TypeChunks, two, 2, 1),
		"CHUNKS of 2 with 3":          frame(wire.TypeChunks, two, 2, 3),
		"CHUNKS of 2 with 253":        frame(wire.TypeChunks, two, 2, 253),
		"CHUNKS of 2^32":              frame(wire.TypeChunks, put(append([]byte(nil), two...), 16, 255, 255, 255, 255), 2, 2),
		"another OBJECT, with a page": frame(wire.TypeObject, wire.Object{ID: 8, Max: piecesize, State: 1, Access: 1, Name: "x"}.Append(nil), 1, 1),
		"an fd on a PUBLISH":          frame(wire.TypePublish, wire.Publish{Object: 7}.Append(nil), 1, 1),
		"another HELLO":               frame(wire.TypeHello, wire.Hello{Backend: 1}.Append(nil), 0, 0),
		"a LIST":                      frame(wire.TypeList, wire.List{}.Append(nil), 0, 0),
		"a PUBLISH not asked for":     frame(wire.TypePublish, wire.Publish{Object: 7, Length: 2 * piecesize, Generation: 3}.Append(nil), 0, 0),
		"half a PUBLISH":              frame(wire.TypePublish, []byte("abc"), 0, 0),
		"half a DELETED":              frame(wire.TypeDeleted, []byte{1}, 0, 0),
		"DELETED of another":          frame(wire.TypeDeleted, wire.Deleted{Object: 8}.Append(nil), 0, 0),
		"an ATTACH":                   frame(wire.TypeAttach, wire.Attach{Access: 1, Name: "x"}.Append(nil), 0, 0),
		"an ACK":                      frame(wire.TypeAck, wire.Ack{Object: 7}.Append(nil), 0, 0),
		"a DONE":                      frame(wire.TypeDone, nil, 0, 0),
		"an unknown type":             frame(999, nil, 0, 0),
		"64 KiB and a byte":           frame(wire.TypeClosing, make([]byte, wire.MaxPayload+1), 0, 0),
		"half a RETIRE":               frame(wire.TypeRetire, make([]byte, 12), 0, 0),
		"an ERROR of code 99":         frame(wire.TypeError, put(wire.Error{Code: 1}.Append(nil), 0, 99), 0, 0),
		"an empty packet with fds":    {func(t *testing.T, k *hostileOwner) { k.packet(nil, nulls(t, 253)...) }, ErrProtocol},
		"an empty packet":             {func(_ *testing.T, k *hostileOwner) { k.packet(nil) }, ErrOwnerGone},
		"noise":                       {func(_ *testing.T, k *hostileOwner) { k.packet(make([]byte, 100)) }, ErrProtocol},
		"CLOSING, then chunks": {func(_ *testing.T, k *hostileOwner) {
			k.send(wire.TypeClosing, 0, wire.Closing{Reason: "x"}.Append(nil))
			k.after(2)
		}, ErrOwnerGone},
		"an ERROR, then chunks": {func(_ *testing.T, k *hostileOwner) {
			k.send(wire.TypeError, 0, wire.Error{Code: 5}.Append(nil))
			k.after(2)
		}, vmm.ErrLimit},
		"an ERROR of CLOSED": {func(_ *testing.T, k *hostileOwner) {
			k.send(wire.TypeError, 0, wire.Error{Code: wire.CodeClosed}.Append(nil))
		}, ErrOwnerGone},
		"DELETED": {func(_ *testing.T, k *hostileOwner) {
			k.send(wire.TypeDeleted, 0, wire.Deleted{Object: 7}.Append(nil))
		}, ErrOwnerGone},
		"RETIRE in the middle":               retires(4, 4096),
		"RETIRE in the middle of the second": retires(4, piecesize+piecesize/2),
		"RETIRE beyond the maximum":          retires(4, 33*piecesize),
		"RETIRE for this generation":         retires(3, 0),
		"RETIRE for an old generation":       retires(2, 0),
		"RETIRE of another": {func(_ *testing.T, k *hostileOwner) {
			k.send(wire.TypeRetire, 0, wire.Retire{Object: 8, Generation: 4}.Append(nil))
		}, ErrProtocol},
		"RETIRE of what is sealed": {func(_ *testing.T, k *hostileOwner) {
			k.send(wire.TypeSealed, 0, wire.Sealed{Object: 7, Length: piecesize}.Append(nil))
			k.send(wire.TypeRetire, 0, wire.Retire{Object: 7, Generation: 4, Capacity: piecesize}.Append(nil))
		}, ErrProtocol},
		"SEALED beyond the maximum":       seals(7, 33*piecesize),
		"SEALED of another":               seals(8, piecesize),
		"SEALED below what was published": seals(7, piecesize-1),
		"SEALED twice": {func(_ *testing.T, k *hostileOwner) {
			k.send(wire.TypeSealed, 0, wire.Sealed{Object: 7, Length: piecesize}.Append(nil))
			k.send(wire.TypeSealed, 0, wire.Sealed{Object: 7, Length: 2 * piecesize}.Append(nil))
		}, ErrProtocol},
	} {
		cases[name] = c
	}
	dev := vmmtest.Device(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := countResources(t, dev)
			t.Run("victim", func(t *testing.T) {
				k, far := newHostileOwner(t)
				v := viewOfTwoChunks(t, k, far, dev, AttachOptions{})
				c.do(t, k)
				require.ErrorIs(t, waitDetached(t, v), c.want)
				require.ErrorIs(t, v.Wait(t.Context(), v.Max()), c.want)
				require.Equal(t, uint64(piecesize), v.Len())
				require.Equal(t, uint64(2*piecesize), v.Cap())
				require.Len(t, v.Segments(), 2)
				require.Equal(t, make([]byte, 10), read(t, v, 10))
				closeView(t, v)
			})
			waitReleased(t, dev, before)
		})
	}
}

// after sends what should not matter any more; the other side may be gone.
func (k *hostileOwner) after(n int) {
	_ = k.c.Write(wire.TypeChunks, 0, 0, k.records(2, n).Append(nil), memory(k.t, piecesize, firm), memory(k.t, piecesize, firm))
}

func retires(generation, capacity uint64) (h struct {
	do   func(*testing.T, *hostileOwner)
	want error
}) {
	h.do = func(_ *testing.T, k *hostileOwner) {
		k.send(wire.TypeRetire, 0, wire.Retire{Object: 7, Generation: generation, Capacity: capacity}.Append(nil))
	}
	h.want = ErrProtocol
	return h
}

func seals(object, n uint64) (h struct {
	do   func(*testing.T, *hostileOwner)
	want error
}) {
	h.do = func(_ *testing.T, k *hostileOwner) {
		k.send(wire.TypeSealed, 0, wire.Sealed{Object: object, Length: n}.Append(nil))
	}
	h.want = ErrProtocol
	return h
}

// TestHostileQuota: an owner cannot charge a reader with more than it allows,
// neither in one chunk nor in many.
func TestHostileQuota(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	k, far := newHostileOwner(t)
	k.o.Max = 4 << 30
	v := viewOfTwoChunks(t, k, far, dev, AttachOptions{MaxBytes: 64 << 20})
	c := k.records(2, 1)
	c.Records[0].Size = 1 << 30
	k.send(wire.TypeChunks, 0, c.Append(nil), memory(t, 1<<30, firm))
	require.ErrorIs(t, waitDetached(t, v), vmm.ErrLimit)
	require.Equal(t, uint64(2*piecesize), v.Cap())

	k, far = newHostileOwner(t)
	v = viewOfTwoChunks(t, k, far, dev, AttachOptions{MaxBytes: 5 * piecesize})
	k.chunks(2, 3)
	k.expect(wire.TypeAck)
	k.chunks(5, 1)
	require.ErrorIs(t, waitDetached(t, v), vmm.ErrLimit)
	require.Equal(t, uint64(5*piecesize), v.Cap())

	o := wire.Object{ID: 7, Max: 1 << 40}
	track, err := wire.NewTracker(o, wire.Limits{Granularity: piecesize})
	require.NoError(t, err)
	k.o.Generation = 0
	for i := 0; i < wire.MaxChunks; i += wire.MaxFDs {
		fresh, _, err := track.Chunks(k.records(i, wire.MaxFDs))
		require.NoError(t, err)
		track.Mapped(len(fresh))
	}
	_, _, err = track.Chunks(k.records(wire.MaxChunks, 1))
	require.ErrorIs(t, err, wire.ErrLimit)
}

// TestHostilePages: a control page that could be taken away, or is not that of
// the object, is not mapped.
func TestHostilePages(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	file := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(file, make([]byte, pageBytes), 0o600))
	made := func(size int64, seals int, at int, v byte) func(*testing.T) int {
		return func(t *testing.T) int {
			fd := memory(t, size, 0)
			b := make([]byte, pageBytes)
			binary.LittleEndian.PutUint32(b[atMagic:], pageMagic)
			binary.LittleEndian.PutUint32(b[atVersion:], pageVersion)
			copy(b[atInstance:], []byte{1, 2})
			b[atObject] = 7
			if at >= 0 {
				b[at] = v
			}
			_, err := unix.Pwrite(fd, b[:min(size, pageBytes)], 0)
			require.NoError(t, err)
			seal(t, fd, seals)
			return fd
		}
	}
	dev := vmmtest.Device(t)
	for name, open := range map[string]func(*testing.T) int{
		"none":             func(*testing.T) int { return -1 }, // the other one alone
		"unsealed":         made(pageBytes, 0, -1, 0),
		"may be written":   made(pageBytes, firm, -1, 0),
		"may shrink":       made(pageBytes, firmPage&^unix.F_SEAL_SHRINK, -1, 0),
		"may grow":         made(pageBytes, firmPage&^unix.F_SEAL_GROW, -1, 0),
		"empty":            made(0, firmPage, -1, 0),
		"zeros":            func(t *testing.T) int { return memory(t, pageBytes, firmPage) },
		"too short":        made(pageBytes-1, firmPage, -1, 0),
		"too long":         made(2*pageBytes, firmPage, -1, 0),
		"another magic":    made(pageBytes, firmPage, atMagic, 'X'),
		"another version":  made(pageBytes, firmPage, atVersion, 2),
		"another object":   made(pageBytes, firmPage, atObject, 8),
		"another instance": made(pageBytes, firmPage, atInstance+15, 1),
		"fifo":             func(t *testing.T) int { return special(t, fifo, unix.O_RDWR) },
		"plain file":       func(t *testing.T) int { return special(t, file, unix.O_RDONLY) },
		"/dev/zero":        func(t *testing.T) int { return special(t, "/dev/zero", unix.O_RDWR) },
		"directory":        func(t *testing.T) int { return special(t, "/", unix.O_RDONLY) },
	} {
		for i, page := range []string{"control page", "wake socket"} {
			if i == 1 && strings.HasPrefix(name, "another") {
				continue // that has no words
			}
			t.Run(name+" as "+page, func(t *testing.T) {
				before := countResources(t, dev)
				t.Run("victim", func(t *testing.T) {
					k, far := newHostileOwner(t)
					got := begins(t, far, dev, AttachOptions{})
					k.hello()
					f := k.expect(wire.TypeAttach)
					pages := []int{k.fd, k.wake.reader}
					if pages[i] = open(t); pages[i] < 0 {
						pages = slices.Delete(pages, i, i+1)
					}
					k.send(wire.TypeObject, f.Request, k.o.Append(nil), pages...)
					require.ErrorIs(t, (<-got).err, ErrProtocol)
					_, err := k.c.Read()
					require.ErrorIs(t, err, io.EOF)
				})
				waitReleased(t, dev, before)
			})
		}
	}
}
