package wire

import (
	"net"
	"os"
	"testing"

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
