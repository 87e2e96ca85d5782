package shareable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// inTime is how long anything here may take.
const inTime = 15 * time.Second

// resources is what this process has, without what Go's runtime maps for itself. A test that
// counts it is not parallel.
type resources struct {
	files []string // of openFiles
	maps  int
	free  uint64
}

func countResources(t *testing.T, dev *vmm.Device) (b resources) {
	t.Helper()
	settled(t)
	b.files = openFiles(t)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	b.maps = strings.Count(string(maps), "memfd:")
	b.free, _, err = dev.MemInfo()
	require.NoError(t, err)
	return b
}

// waitReleased waits until the resources are what they were before.
func waitReleased(t *testing.T, dev *vmm.Device, before resources) {
	t.Helper()
	var now resources
	soon(t, "%+v before, %+v now", func() bool {
		// Memory of earlier tests may be freed meanwhile, when the driver looks at it.
		now = countResources(t, dev)
		return len(now.files) <= len(before.files) && now.maps <= before.maps && now.free >= before.free
	}, before, &now)
}

// waitExported waits until nothing is connected to the server and each chunk of the publication's
// range has an open descriptor in the cache, which has no other. A publication exports its chunks in
// the background, also those above the length again after a Retire. So a test that counts
// descriptors calls this before it counts.
func waitExported(t *testing.T, s *Server, p *Publication) {
	t.Helper()
	soon(t, "each chunk is exported", func() bool {
		return s.Stats().Conns == 0 && s.fds.exported() == len(p.r.Segments())
	})
}

// exported is the number of entries whose export has ended.
func (c *fdCache) exported() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.entries {
		if isClosed(d.ready) {
			n++
		}
	}
	return n
}

// hostileClient is a peer that sends what it likes, in packets of its own.
type hostileClient struct {
	t  *testing.T
	fd int
	n  uint64 // frames sent
}

func rawConn(t *testing.T, path string) *hostileClient {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	e := &hostileClient{t: t, fd: fd}
	t.Cleanup(e.close)
	limit := unix.NsecToTimeval(int64(inTime))
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
	require.NoError(t, unix.Connect(fd, &unix.SockaddrUnix{Name: path}))
	return e
}

func (e *hostileClient) close() {
	if e.fd >= 0 {
		_ = unix.Close(e.fd)
		e.fd = -1
	}
}

// packet sends bytes with descriptors; the other side may have gone by now.
func (e *hostileClient) packet(b []byte, fds ...int) error {
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	return sendRaw(e.fd, b, control)
}

// header is that of the next frame.
func (e *hostileClient) header(of wire.Type, body []byte) wire.Header {
	e.n++
	return wire.Header{Major: wire.Major, Type: of, Len: uint32(len(body)), Request: uint32(e.n), Sequence: e.n}
}

// send sends a frame without descriptors.
func (e *hostileClient) send(of wire.Type, body []byte) error {
	return e.packet(append(e.header(of, body).Append(nil), body...))
}

func (e *hostileClient) hello() {
	e.t.Helper()
	require.NoError(e.t, e.send(wire.TypeHello, wire.Hello{Backend: wire.BackendHost, Granularity: 4096}.Append(nil)))
	require.Equal(e.t, wire.TypeHello, e.next().Type)
}

func (e *hostileClient) attach(name string) wire.Object {
	e.t.Helper()
	require.NoError(e.t, e.send(wire.TypeAttach, wire.Attach{Access: wire.AccessRead, Name: name}.Append(nil)))
	f := e.next()
	require.Equal(e.t, wire.TypeObject, f.Type)
	o, err := wire.DecodeObject(f.Payload)
	require.NoError(e.t, err)
	return o
}

// read takes one packet and closes what came with it; false at the end.
func (e *hostileClient) read() (wire.Frame, bool) {
	b, oob := make([]byte, wire.MaxFrame), make([]byte, 2048)
	n, m, _, _, err := unix.Recvmsg(e.fd, b, oob, unix.MSG_CMSG_CLOEXEC)
	for errors.Is(err, unix.EINTR) { // with a time limit the system does not go on by itself
		n, m, _, _, err = unix.Recvmsg(e.fd, b, oob, unix.MSG_CMSG_CLOEXEC)
	}
	require.NotErrorIs(e.t, err, unix.EAGAIN, "nothing came in time")
	if err != nil || n == 0 {
		return wire.Frame{}, false
	}
	messages, err := unix.ParseSocketControlMessage(oob[:m])
	require.NoError(e.t, err)
	for _, c := range messages {
		fds, err := unix.ParseUnixRights(&c)
		require.NoError(e.t, err)
		for _, fd := range fds {
			require.NoError(e.t, unix.Close(fd))
		}
	}
	h, err := wire.DecodeHeader(b[:n])
	require.NoError(e.t, err)
	return wire.Frame{Header: h, Payload: b[wire.HeaderSize:n]}, true
}

// next is the next frame that is no chunks.
func (e *hostileClient) next() wire.Frame {
	e.t.Helper()
	for {
		f, ok := e.read()
		require.True(e.t, ok, "the connection has ended")
		if f.Type != wire.TypeChunks {
			return f
		}
	}
}

// refused reads an ERROR with this code.
func (e *hostileClient) refused(code uint32) {
	e.t.Helper()
	f := e.next()
	require.Equal(e.t, wire.TypeError, f.Type)
	got, err := wire.DecodeError(f.Payload)
	require.NoError(e.t, err)
	require.Equal(e.t, code, got.Code, got.Text)
}

// last reads until the connection ends, and gives the code of the last ERROR.
func (e *hostileClient) last() (code uint32) {
	e.t.Helper()
	for tries := 0; tries < 2; {
		f, ok := e.read()
		if !ok { // a reset is told before what was sent
			tries++
			continue
		}
		if f.Type == wire.TypeError {
			got, err := wire.DecodeError(f.Payload)
			require.NoError(e.t, err)
			code = got.Code
		}
	}
	return code
}

// works says that the connection goes on.
func (e *hostileClient) works() {
	e.t.Helper()
	require.NoError(e.t, e.send(wire.TypeList, wire.List{}.Append(nil)))
	require.Equal(e.t, wire.TypeListed, e.next().Type)
}

// nulls are n descriptors of no memory.
func nulls(t *testing.T, n int) []int {
	t.Helper()
	fds := make([]int, n)
	for i := range fds {
		fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		fds[i] = fd
	}
	return fds
}

// honest attaches as one should and compares every byte.
func honest(t *testing.T, path string, dev *vmm.Device, want []byte, o AttachOptions) {
	t.Helper()
	v, err := Attach(t.Context(), path, "x", dev, o)
	require.NoError(t, err)
	wait(t, v, uint64(len(want)))
	require.True(t, bytes.Equal(want, read(t, v, len(want))))
	require.NoError(t, v.Close())
}

// raw is a whole frame of its own: the first that is sent.
func raw(h wire.Header, body []byte) []byte { return append(h.Append(nil), body...) }

// put changes bytes of a frame.
func put(b []byte, at int, v ...byte) []byte {
	copy(b[at:], v)
	return b
}

const (
	goesOn   = iota // the connection does
	violates        // it ends, and is counted as a violation
	limited         // it ends, with an ERROR that says so
	leaves          // it ends
)

// attack is what a client does to a server, and what comes of it.
type attack struct {
	name  string
	early bool // before it has said HELLO
	do    func(*hostileClient)
	want  int
}

func attacks(x wire.Object) []attack {
	list := wire.List{}.Append(nil)
	hello := wire.Hello{Backend: wire.BackendHost}.Append(nil)
	helloFrame := func() []byte {
		return raw(wire.Header{Major: 1, Type: wire.TypeHello, Len: uint32(len(hello)), Sequence: 1}, hello)
	}
	sends := func(of wire.Type, body []byte) func(*hostileClient) {
		return func(e *hostileClient) { _ = e.send(of, body) }
	}
	names := func(of wire.Type, before []byte, name string) func(*hostileClient) {
		b := binary.LittleEndian.AppendUint32(before, uint32(len(name)))
		return sends(of, append(b, name...))
	}
	withFDs := func(of wire.Type, body []byte, says uint16, has int) func(*hostileClient) {
		return func(e *hostileClient) {
			h := e.header(of, body)
			h.FDs = says
			_ = e.packet(raw(h, body), nulls(e.t, has)...)
		}
	}
	read := []byte{1, 0, 0, 0, 0, 0, 0, 0} // access and flags of an ATTACH
	all := []attack{
		{"another magic", true, func(e *hostileClient) { _ = e.packet(put(helloFrame(), 0, 'X')) }, violates},
		{"version 2", true, func(e *hostileClient) { _ = e.packet(put(helloFrame(), 4, 2)) }, violates},
		{"reserved bytes", true, func(e *hostileClient) { _ = e.packet(put(helloFrame(), 14, 1)) }, violates},
		{"unknown flags", true, func(e *hostileClient) { _ = e.packet(put(helloFrame(), 8, 2)) }, violates},
		{"number 2 first", true, func(e *hostileClient) { _ = e.packet(put(helloFrame(), 24, 2)) }, violates},
		{"a byte", true, func(e *hostileClient) { _ = e.packet([]byte{1}) }, violates},
		{"half a header", true, func(e *hostileClient) { _ = e.packet(helloFrame()[:16]) }, violates},
		{"half a HELLO", true, func(e *hostileClient) { _ = e.packet(helloFrame()[:60]) }, violates},
		{"a HELLO of backend 9", true, func(e *hostileClient) { _ = e.packet(put(helloFrame(), wire.HeaderSize+40, 9)) }, violates},
		{"LIST before HELLO", true, sends(wire.TypeList, list), violates},
		{"a HELLO with 253 fds", true, func(e *hostileClient) { _ = e.packet(helloFrame(), nulls(e.t, 253)...) }, violates},
		{"a HELLO with 254 fds", true, func(e *hostileClient) {
			require.ErrorIs(e.t, e.packet(helloFrame(), nulls(e.t, 254)...), unix.EINVAL)
		}, leaves},
		{"nothing with an fd", true, func(e *hostileClient) { _ = e.packet(nil, nulls(e.t, 1)...) }, violates},
		{"nothing with 253 fds", false, func(e *hostileClient) { _ = e.packet(nil, nulls(e.t, 253)...) }, violates},
		{"nothing", false, func(e *hostileClient) { _ = e.packet(nil) }, leaves},
		{"64 KiB and a byte", false, func(e *hostileClient) {
			_ = e.packet(raw(e.header(wire.TypeList, make([]byte, wire.MaxPayload+1)), make([]byte, wire.MaxPayload+1)))
		}, violates},
		{"128 KiB of zeros with fds", false, func(e *hostileClient) { _ = e.packet(make([]byte, 128<<10), nulls(e.t, 64)...) }, violates},
		{"half a LIST", false, func(e *hostileClient) { _ = e.packet(raw(e.header(wire.TypeList, list), list[:4])) }, violates},
		{"a LIST and a byte", false, sends(wire.TypeList, append(list, 0)), violates},
		{"a LIST with an fd", false, withFDs(wire.TypeList, list, 1, 1), violates},
		{"a LIST with an fd it does not announce", false, withFDs(wire.TypeList, list, 0, 1), violates},
		{"an fd too few", false, withFDs(wire.TypeChunks, wire.Chunks{Records: make([]wire.Chunk, 2)}.Append(nil), 2, 1), violates},
		{"64 chunks", false, withFDs(wire.TypeChunks, wire.Chunks{Records: make([]wire.Chunk, 64)}.Append(nil), 64, 64), violates},
		{"an OBJECT with an fd", false, withFDs(wire.TypeObject, x.Append(nil), 1, 1), violates},
		{"an unknown type", false, sends(999, nil), violates},
		{"an unknown type that may be skipped", false, func(e *hostileClient) {
			h := e.header(999, list)
			h.Flags = wire.FlagOptional
			_ = e.packet(raw(h, list))
		}, goesOn},
		{"an unknown type that may be skipped, with fds", false, func(e *hostileClient) {
			h := e.header(999, list)
			h.Flags, h.FDs = wire.FlagOptional, 64
			_ = e.packet(raw(h, list), nulls(e.t, 64)...)
		}, violates},
		{"a LIST that may be skipped", false, func(e *hostileClient) {
			h := e.header(wire.TypeList, list)
			h.Flags = wire.FlagOptional
			_ = e.packet(raw(h, list))
			require.Equal(e.t, wire.TypeListed, e.next().Type)
		}, goesOn},
		{"the same number again", false, func(e *hostileClient) { e.n--; _ = e.send(wire.TypeList, list) }, violates},
		{"a number left out", false, func(e *hostileClient) { e.n++; _ = e.send(wire.TypeList, list) }, violates},
		{"HELLO twice", false, sends(wire.TypeHello, hello), violates},
		{"a DONE", false, sends(wire.TypeDone, nil), violates},
		{"a RETIRE", false, sends(wire.TypeRetire, wire.Retire{Object: x.ID, Generation: 9}.Append(nil)), violates},
		{"a SEALED", false, sends(wire.TypeSealed, wire.Sealed{Object: x.ID}.Append(nil)), violates},
		{"ATTACH twice", false, func(e *hostileClient) {
			e.attach("x")
			require.NoError(e.t, e.send(wire.TypeAttach, wire.Attach{Access: 1, Name: "x"}.Append(nil)))
			e.refused(wire.CodeBusy)
		}, goesOn},
		{"ATTACH to write", false, func(e *hostileClient) {
			require.NoError(e.t, e.send(wire.TypeAttach, wire.Attach{Access: 2, Name: "x"}.Append(nil)))
			e.refused(wire.CodePermission)
		}, goesOn},
		{"ATTACH with access 3", false, names(wire.TypeAttach, put(bytes.Clone(read), 0, 3), "x"), violates},
		{"ATTACH with flags", false, names(wire.TypeAttach, put(bytes.Clone(read), 4, 8), "x"), violates},
		{"ATTACH, 20 times and DETACH", false, func(e *hostileClient) {
			for range 20 {
				o := e.attach("x")
				require.NoError(e.t, e.send(wire.TypeDetach, wire.Detach{Object: o.ID}.Append(nil)))
				require.Equal(e.t, wire.TypeDone, e.next().Type)
			}
		}, goesOn},
		{"DETACH of what is not attached", false, func(e *hostileClient) {
			_ = e.send(wire.TypeDetach, wire.Detach{Object: x.ID}.Append(nil))
			e.refused(wire.CodeNotFound)
		}, goesOn},
		{"ACK of a chunk never sent", false, func(e *hostileClient) {
			e.attach("x")
			_ = e.send(wire.TypeAck, wire.Ack{Object: x.ID, Chunk: 1 << 40}.Append(nil))
		}, violates},
		{"ACK of a generation never told", false, func(e *hostileClient) {
			e.attach("x")
			_ = e.send(wire.TypeAck, wire.Ack{Object: x.ID, Generation: ^uint64(0)}.Append(nil))
		}, violates},
		{"ACK of what is not attached", false, sends(wire.TypeAck, wire.Ack{Object: x.ID, Chunk: 5}.Append(nil)), goesOn},
		{"RESYNC of what is not attached", false, func(e *hostileClient) {
			_ = e.send(wire.TypeResync, wire.Resync{Object: x.ID, Batch: 1}.Append(nil))
			e.refused(wire.CodeNotFound)
		}, goesOn},
		{"RESYNC by 0", false, sends(wire.TypeResync, wire.Resync{Object: x.ID}.Append(nil)), violates},
		{"RESYNC by 65", false, sends(wire.TypeResync, wire.Resync{Object: x.ID, Batch: 65}.Append(nil)), violates},
		{"RESYNC from the end of all numbers", false, func(e *hostileClient) {
			e.attach("x")
			_ = e.send(wire.TypeResync, wire.Resync{Object: x.ID, Next: ^uint64(0), Batch: 64}.Append(nil))
		}, goesOn},
		{"a LIST from the end of all numbers", false, func(e *hostileClient) {
			_ = e.send(wire.TypeList, wire.List{After: ^uint64(0)}.Append(nil))
			require.Equal(e.t, wire.TypeListed, e.next().Type)
		}, goesOn},
		{"a CREATE", false, func(e *hostileClient) { _ = e.send(wire.TypeCreate, []byte("x")); e.refused(wire.CodeNotSupported) }, goesOn},
		{"LIST flood", false, flood(wire.TypeList, list), limited},
		{"STAT flood", false, flood(wire.TypeStat, wire.Stat{Name: "none"}.Append(nil)), limited},
		{"RESYNC flood", false, func(e *hostileClient) {
			e.attach("x")
			flood(wire.TypeResync, wire.Resync{Object: x.ID, Batch: 64}.Append(nil))(e)
		}, limited},
		{"ACK flood", false, func(e *hostileClient) {
			e.attach("x")
			flood(wire.TypeAck, wire.Ack{Object: x.ID}.Append(nil))(e)
		}, limited},
		{"a flood of what may be skipped", false, skipFlood, limited},
		{"a flood of what may be skipped, first", true, skipFlood, limited},
		{"ACK flood for nothing", false, flood(wire.TypeAck, wire.Ack{Object: 99}.Append(nil)), limited},
	}
	for _, name := range []string{"", "..", "../x", "x/../x", "x\x00", "x y", "x\n", "caf\xc3\xa9", "\xff", strings.Repeat("x", 257)} {
		all = append(all,
			attack{"STAT " + name, false, names(wire.TypeStat, nil, name), violates},
			attack{"ATTACH " + name, false, names(wire.TypeAttach, read, name), violates})
	}
	for _, name := range []string{"X", "x.", "./x", "/x", "x/", "@x", strings.Repeat("x", 256)} {
		all = append(all, attack{"ATTACH another name, " + name, false, func(e *hostileClient) {
			names(wire.TypeAttach, read, name)(e)
			e.refused(wire.CodeNotFound)
		}, goesOn})
	}
	return all
}

// flood sends until the other side has had enough.
func flood(of wire.Type, body []byte) func(*hostileClient) {
	return func(e *hostileClient) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; i < 200_000 && e.send(of, body) == nil; i++ {
			}
		}()
		require.Equal(e.t, wire.CodeLimit, e.last())
		<-done
	}
}

func skipFlood(e *hostileClient) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200_000 {
			h := e.header(999, nil)
			h.Flags = wire.FlagOptional
			if e.packet(h.Append(nil)) != nil {
				return
			}
		}
	}()
	require.Equal(e.t, wire.CodeLimit, e.last())
	<-done
}

// TestHostileClients: whatever a client sends costs it the connection and
// nothing else: the server goes on, and has what it had before.
func TestHostileClients(t *testing.T) {
	s, p, g := stage(t, takingFDs(Options{}), PublishOptions{})
	want := pattern(0, 2<<20+1000) // over a chunk
	require.NoError(t, g.Append(want))
	dev := vmmtest.Device(t)
	honest(t, s.Path(), dev, want, AttachOptions{})
	p.mu.Lock()
	chunks, x := len(p.chunks), p.describeLocked("x", wire.AccessRead)
	p.mu.Unlock()
	waitExported(t, s, p)
	before := countResources(t, g.Device())
	for _, a := range attacks(x) {
		t.Run(a.name, func(t *testing.T) {
			was := s.Stats()
			e := rawConn(t, s.Path())
			if !a.early {
				e.hello()
			}
			a.do(e)
			switch a.want {
			case goesOn:
				e.works()
			case violates, limited: // read to its end, which the server makes
				e.last()
			}
			e.close()
			require.Eventually(t, func() bool {
				now := s.Stats()
				return now.Conns == 0 && now.Accepted == was.Accepted+1 && p.Readers() == 0 &&
					(a.want != violates || now.Violations > was.Violations)
			}, inTime, time.Millisecond)
			now := s.Stats()
			if a.want != violates {
				require.Equal(t, was.Violations, now.Violations)
			}
			require.Zero(t, now.TimedOut)
			require.Equal(t, chunks, now.KeptFDs)
			honest(t, s.Path(), dev, want, AttachOptions{})
		})
		waitReleased(t, g.Device(), before)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.bytesByUID)
}

// TestVersionIsAnswered: a peer of another version gets to know why it is
// turned away.
func TestVersionIsAnswered(t *testing.T) {
	t.Parallel()
	s, _, _ := stage(t, Options{}, PublishOptions{})
	e := rawConn(t, s.Path())
	b := wire.Hello{Backend: wire.BackendHost}.Append(nil)
	require.NoError(t, e.packet(put(raw(e.header(wire.TypeHello, b), b), 4, 2)))
	require.Equal(t, wire.CodeVersion, e.last())
}
