package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pair is a Conn and the bare other end, which may send anything.
func pair(t testing.TB) (*Conn, int) {
	t.Helper()
	a, b := sockets(t, unix.SOCK_SEQPACKET)
	t.Cleanup(func() { _ = unix.Close(b) })
	return conn(t, a), b
}

// conns are two ends that both keep to the protocol.
func conns(t testing.TB) (*Conn, *Conn) {
	t.Helper()
	a, b := sockets(t, unix.SOCK_SEQPACKET)
	return conn(t, a), conn(t, b)
}

func sockets(t testing.TB, kind int) (int, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	return fds[0], fds[1]
}

// conn takes over fd.
func conn(t testing.TB, fd int) *Conn {
	t.Helper()
	c, err := NewConn(unixConn(t, fd))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// unixConn takes over fd.
func unixConn(t testing.TB, fd int) *net.UnixConn {
	t.Helper()
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	c, err := net.FileConn(file)
	require.NoError(t, err)
	return c.(*net.UnixConn)
}

// null opens n fds that are closed at the end of the test.
func null(t testing.TB, n int) []int {
	t.Helper()
	fds := make([]int, n)
	for i := range fds {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		fds[i] = fd
	}
	return fds
}

// openFDs counts this process's open descriptors. No test runs beside another.
func openFDs(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func TestConnCarriesFrames(t *testing.T) {
	a, b := conns(t)
	c := Chunks{Object: 7, Records: []Chunk{{1, 0, 4096}, {2, 4096, 4096}}}
	fds := null(t, 2)
	require.NoError(t, a.Write(TypeHello, 0, 0, Hello{Backend: BackendHost}.Append(nil)))
	require.NoError(t, a.Write(TypeChunks, 9, 0, c.Append(nil), fds...))

	f, err := b.Read()
	require.NoError(t, err)
	require.Equal(t, TypeHello, f.Type)
	require.Equal(t, uint64(1), f.Sequence)
	require.Empty(t, f.FDs)

	f, err = b.Read()
	require.NoError(t, err)
	require.Equal(t, Header{
		Major: Major, Minor: Minor, Type: TypeChunks, FDs: 2, Len: uint32(len(f.Payload)), Request: 9, Sequence: 2,
	}, f.Header)
	got, err := DecodeChunks(f.Payload)
	require.NoError(t, err)
	require.Equal(t, c, got)
	require.Len(t, f.FDs, 2)
	for _, fd := range f.FDs {
		flags, err := unix.FcntlInt(uintptr(fd.Int()), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
	}
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	require.Equal(t, -1, f.FDs[0].Int())
}

// What the tests of hostile packets rely on.
func TestLeftOpenFDsAreSeen(t *testing.T) {
	a, b := conns(t)
	fds := null(t, 3)
	records := Chunks{Records: make([]Chunk, 3)}.Append(nil)
	before := openFDs(t)
	require.NoError(t, a.Write(TypeChunks, 0, 0, records, fds...))
	f, err := b.Read()
	require.NoError(t, err)
	require.Equal(t, before+3, openFDs(t))
	fd := f.FDs[1].Take()
	require.NoError(t, f.Close())
	require.Equal(t, before+1, openFDs(t))
	require.NoError(t, unix.Close(fd))
	require.Equal(t, before, openFDs(t))
}

func TestFD(t *testing.T) {
	var zero FD
	for _, f := range []*FD{nil, {}, NewFD(-1), &zero} {
		require.Equal(t, -1, f.Int())
		require.Equal(t, -1, f.Take())
		require.NoError(t, f.Close())
	}
	before := openFDs(t)
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	f := NewFD(fd)
	require.Equal(t, fd, f.Int())
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() { _ = f.Close() })
	}
	group.Wait()
	require.Equal(t, -1, f.Int())
	require.Equal(t, before, openFDs(t))

	f = NewFD(1 << 30)
	require.ErrorIs(t, f.Close(), unix.EBADF)
	require.NoError(t, f.Close())
}

func TestConnWantsPackets(t *testing.T) {
	for name, kind := range map[string]int{"stream": unix.SOCK_STREAM, "datagram": unix.SOCK_DGRAM} {
		t.Run(name, func(t *testing.T) {
			before := openFDs(t)
			fd, other := sockets(t, kind)
			c := unixConn(t, fd)
			_, err := NewConn(c)
			require.ErrorIs(t, err, ErrNotPacket)
			_, err = c.Write([]byte("still the caller's"))
			require.NoError(t, err)
			require.NoError(t, c.Close())
			_, err = NewConn(c)
			require.ErrorIs(t, err, net.ErrClosed)
			require.NoError(t, unix.Close(other))
			require.Equal(t, before, openFDs(t))
		})
	}
	_, err := NewConn(nil)
	require.ErrorIs(t, err, ErrNotPacket)
}

func TestConnOfAListener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	defer l.Close()
	dialled, err := net.DialUnix("unixpacket", nil, l.Addr().(*net.UnixAddr))
	require.NoError(t, err)
	accepted, err := l.AcceptUnix()
	require.NoError(t, err)
	a, err := NewConn(dialled)
	require.NoError(t, err)
	defer a.Close()
	b, err := NewConn(accepted)
	require.NoError(t, err)
	defer b.Close()
	for _, c := range []*Conn{a, b} {
		cred, err := c.Cred()
		require.NoError(t, err)
		require.Equal(t, Cred{PID: int32(os.Getpid()), UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}, cred)
	}
	require.NoError(t, b.Write(TypeDone, 1, 0, nil))
	f, err := a.Read()
	require.NoError(t, err)
	require.Equal(t, TypeDone, f.Type)
}

func TestConnWritesFromManyGoroutines(t *testing.T) {
	const writers, each = 8, 200
	a, b := conns(t)
	fds := null(t, 1)
	records := Chunks{Records: make([]Chunk, 1)}.Append(nil)
	before := openFDs(t)
	var group sync.WaitGroup
	wrote := make([]error, writers)
	for w := range writers {
		group.Go(func() {
			for range each {
				err := a.Write(TypeChunks, uint32(w), 0, records, fds...)
				wrote[w] = errors.Join(wrote[w], err)
			}
		})
	}
	got := make([]int, writers)
	for i := range writers * each {
		f, err := b.Read()
		require.NoError(t, err)
		require.Equal(t, uint64(i+1), f.Sequence)
		require.NoError(t, f.Close())
		got[f.Request]++
	}
	group.Wait()
	for w := range writers {
		require.NoError(t, wrote[w])
		require.Equal(t, each, got[w])
	}
	require.Equal(t, before, openFDs(t))
}

func TestConnRefusesToWriteTooMuch(t *testing.T) {
	a, b := conns(t)
	require.ErrorContains(t, a.Write(TypeClosing, 0, 0, make([]byte, MaxPayload+1)), "CLOSING with 65505 bytes and 0 fds")
	require.ErrorContains(t, a.Write(TypeChunks, 0, 0, nil, make([]int, MaxFDs+1)...), "CHUNKS with 0 bytes and 65 fds")
	require.ErrorIs(t, a.Write(TypeChunks, 0, 0, nil, -1), unix.EBADF)
	require.NoError(t, a.Write(TypeClosing, 0, 0, make([]byte, MaxPayload)))
	f, err := b.Read()
	require.NoError(t, err)
	require.Equal(t, uint64(1), f.Sequence)
	require.Len(t, f.Payload, MaxPayload)

	fds, records := null(t, MaxFDs), Chunks{Records: make([]Chunk, MaxFDs)}.Append(nil)
	before := openFDs(t)
	require.NoError(t, a.Write(TypeChunks, 0, 0, records, fds...))
	f, err = b.Read()
	require.NoError(t, err)
	require.Len(t, f.FDs, MaxFDs)
	require.NoError(t, f.Close())
	require.Equal(t, before, openFDs(t))
}

func TestConnDeadlines(t *testing.T) {
	a, b := conns(t)
	require.NoError(t, a.SetSendBuffer(1))
	require.NoError(t, b.SetReadDeadline(time.Unix(1, 0)))
	_, err := b.Read()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, b.SetReadDeadline(time.Time{}))

	n, err := a.Queued()
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, a.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	written := 0
	for err = error(nil); err == nil; written++ {
		err = a.Write(TypeClosing, 0, 0, make([]byte, 1000))
	}
	written--
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NotZero(t, written)
	n, err = a.Queued()
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, 1000*written)

	// The frame that found no room has not used up a number.
	for range written {
		_, err := b.Read()
		require.NoError(t, err)
	}
	n, err = a.Queued()
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, a.SetWriteDeadline(time.Time{}))
	require.NoError(t, a.Write(TypeDone, 0, 0, nil))
	f, err := b.Read()
	require.NoError(t, err)
	require.Equal(t, uint64(written+1), f.Sequence)
}

func TestConnEnds(t *testing.T) {
	a, b := conns(t)
	fds := null(t, 2)
	records := Chunks{Records: make([]Chunk, 2)}.Append(nil)
	require.NoError(t, a.Write(TypeChunks, 0, 0, records, fds...))
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.ErrorIs(t, a.Write(TypeDone, 0, 0, nil), net.ErrClosed)
	_, err := a.Read()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = a.Queued()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = a.Cred()
	require.ErrorIs(t, err, net.ErrClosed)

	// What was sent before still comes.
	f, err := b.Read()
	require.NoError(t, err)
	require.NoError(t, f.Close())
	for range 2 {
		_, err = b.Read()
		require.ErrorIs(t, err, io.EOF)
	}
	require.ErrorIs(t, b.Write(TypeDone, 0, 0, nil), unix.EPIPE)
}

func TestConnCloseEndsRead(t *testing.T) {
	_, b := conns(t)
	read := make(chan error)
	go func() {
		_, err := b.Read()
		read <- err
	}()
	require.NoError(t, b.Close())
	require.ErrorIs(t, <-read, net.ErrClosed)
}

// Fds that are never read go with the connection.
func TestConnAbandoned(t *testing.T) {
	fds := null(t, MaxFDs)
	records := Chunks{Records: make([]Chunk, MaxFDs)}.Append(nil)
	before := openFDs(t)
	for _, closeFirst := range []string{"sender", "receiver"} {
		a, b := conns(t)
		for range 3 {
			require.NoError(t, a.Write(TypeChunks, 0, 0, records, fds...))
		}
		if closeFirst == "sender" {
			require.NoError(t, a.Close())
		}
		require.NoError(t, b.Close())
		require.NoError(t, a.Close())
	}
	require.Equal(t, before, openFDs(t))
}

// An unknown type that may be skipped is, with its fds.
func TestConnSkips(t *testing.T) {
	a, b := conns(t)
	fds := null(t, 5)
	before := openFDs(t)
	require.NoError(t, a.Write(200, 0, FlagOptional, []byte("a later version's"), fds...))
	require.NoError(t, a.Write(34, 1, FlagOptional, nil))
	require.NoError(t, a.Write(TypeDone, 2, FlagOptional, nil))
	f, err := b.Read()
	require.NoError(t, err)
	require.Equal(t, TypeDone, f.Type)
	require.Equal(t, uint64(3), f.Sequence)
	require.Equal(t, before, openFDs(t))

	require.NoError(t, a.Write(200, 0, 0, nil, fds...))
	_, err = b.Read()
	require.ErrorContains(t, err, "frame of the unknown type 200")
	b.Release()
	require.Equal(t, before, openFDs(t))
}

// The fds of a frame stay open until the next Read, or Release.
func TestConnRelease(t *testing.T) {
	a, b := conns(t)
	fds := null(t, 2)
	records := Chunks{Records: make([]Chunk, 2)}.Append(nil)
	before := openFDs(t)
	for range 2 {
		require.NoError(t, a.Write(TypeChunks, 0, 0, records, fds...))
	}
	_, err := b.Read()
	require.NoError(t, err)
	f, err := b.Read()
	require.NoError(t, err)
	require.Equal(t, before+2, openFDs(t))
	b.Release()
	b.Release()
	require.Equal(t, before, openFDs(t))
	require.Equal(t, -1, f.FDs[0].Int())
}

// After Shutdown the peer sends nothing more, and Drain closes what it has sent, empty
// packets or not.
func TestConnDrain(t *testing.T) {
	c, raw := pair(t)
	fds := null(t, 3)
	before := openFDs(t)
	require.NoError(t, sendRaw(t, raw, packet(TypeDone, 0, 1, nil), nil))
	for _, n := range []int{3, 0, 2, 0, 0, 1} {
		require.NoError(t, sendRaw(t, raw, nil, control(fds[:n])))
	}
	require.NoError(t, sendRaw(t, raw, []byte("noise"), control(fds)))
	_, err := c.Read()
	require.NoError(t, err)
	require.NoError(t, c.Shutdown())
	require.ErrorIs(t, sendRaw(t, raw, []byte("late"), nil), unix.EPIPE)
	c.Drain()
	require.Equal(t, before, openFDs(t))
	_, err = c.Read()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, c.Shutdown())
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.Shutdown(), net.ErrClosed)
}

// A Read that waits is ended by Shutdown, on either side.
func TestConnShutdownEndsRead(t *testing.T) {
	a, b := conns(t)
	read := make(chan error, 2)
	for _, c := range []*Conn{a, b} {
		go func() {
			_, err := c.Read()
			read <- err
		}()
	}
	require.NoError(t, b.Shutdown())
	for range 2 {
		require.ErrorIs(t, <-read, io.EOF)
	}
}
