package wire

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// ownerPair is a Conn of NewOwnerConn and the bare other end.
func ownerPair(t *testing.T) (*Conn, int) {
	t.Helper()
	a, b := sockets(t, unix.SOCK_SEQPACKET)
	t.Cleanup(func() { _ = unix.Close(b) })
	c, err := NewOwnerConn(unixConn(t, a))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c, b
}

func header(of Type, flags uint32, fds uint16, sequence uint64) []byte {
	return Header{Major: Major, Type: of, Flags: flags, FDs: fds, Sequence: sequence}.Append(nil)
}

// TestOwnerConnTakesNoFDs: a packet with fds breaks the protocol, whatever else it is.
// It stays where it is, and no fd is installed.
func TestOwnerConnTakesNoFDs(t *testing.T) {
	for name, c := range map[string]struct {
		packet []byte
		fds    int
	}{
		"a request":           {header(TypeDone, 0, 1, 1), 1},
		"one unannounced":     {header(TypeDone, 0, 0, 1), 1},
		"an unknown type":     {header(999, FlagOptional, 64, 1), 64},
		"as many as there go": {header(TypeDone, 0, 64, 1), 253},
		"an empty packet":     {nil, 1},
		"a byte":              {[]byte{1}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			o, far := ownerPair(t)
			fds := null(t, c.fds)
			before := openFDs(t)
			require.NoError(t, sendRaw(t, far, header(TypeDone, 0, 0, 1), nil))
			f, err := o.Read()
			require.NoError(t, err)
			require.Equal(t, TypeDone, f.Type)
			require.NoError(t, sendRaw(t, far, c.packet, unix.UnixRights(fds...)))
			var broke *ProtocolError
			_, err = o.Read()
			require.ErrorAs(t, err, &broke)
			require.ErrorContains(t, err, "fds")
			require.Equal(t, before, openFDs(t))
			unread, err := unix.IoctlGetInt(far, unix.SIOCOUTQ)
			require.NoError(t, err)
			require.Positive(t, unread)
		})
	}
	t.Run("announced only", func(t *testing.T) {
		o, far := ownerPair(t)
		require.NoError(t, sendRaw(t, far, header(999, FlagOptional, 1, 1), nil))
		var broke *ProtocolError
		_, err := o.Read()
		require.ErrorAs(t, err, &broke)
	})
}

// TestDiscard: what is unread goes, up to the first packet with fds.
func TestDiscard(t *testing.T) {
	plain, empty := []byte{1}, []byte(nil)
	for name, c := range map[string]struct {
		packets [][]byte
		fds     bool // one more packet, with fds
		closed  bool // by the peer
		left    bool
	}{
		"nothing":                     {},
		"packets":                     {packets: [][]byte{plain, plain, plain}},
		"empty packets":               {packets: [][]byte{empty, empty, plain, empty}},
		"fds":                         {fds: true, left: true},
		"fds behind packets":          {packets: [][]byte{plain, plain}, fds: true, left: true},
		"fds behind empty packets":    {packets: [][]byte{empty, empty}, fds: true, left: true},
		"the end":                     {closed: true},
		"packets and the end":         {packets: [][]byte{plain, empty}, closed: true},
		"fds behind packets, the end": {packets: [][]byte{plain, empty}, fds: true, closed: true, left: true},
	} {
		t.Run(name, func(t *testing.T) {
			o, far := ownerPair(t)
			before := openFDs(t)
			require.NoError(t, o.Write(TypeDone, 0, 0, nil)) // unread when the peer closes: a reset
			for _, p := range c.packets {
				require.NoError(t, sendRaw(t, far, p, nil))
			}
			if c.fds {
				require.NoError(t, sendRaw(t, far, empty, unix.UnixRights(null(t, 1)...)))
				before++
			}
			if c.closed {
				require.NoError(t, unix.Shutdown(far, unix.SHUT_RDWR))
			}
			require.NoError(t, o.Shutdown())
			require.Equal(t, c.left, !o.Discard())
			require.Equal(t, c.left, !o.Discard(), "again")
			require.Equal(t, before, openFDs(t))
			require.ErrorIs(t, sendRaw(t, far, plain, nil), unix.EPIPE, "nothing more comes")
		})
	}
	t.Run("after a reset", func(t *testing.T) {
		a, far := sockets(t, unix.SOCK_SEQPACKET)
		o, err := NewOwnerConn(unixConn(t, a))
		require.NoError(t, err)
		require.NoError(t, o.Write(TypeDone, 0, 0, nil))
		require.NoError(t, sendRaw(t, far, empty, unix.UnixRights(null(t, 1)...)))
		require.NoError(t, unix.Close(far))
		require.NoError(t, o.Shutdown())
		require.False(t, o.Discard())
		require.NoError(t, o.Close())
	})
}

// TestShutdown: what waits returns, and what came before can be read.
func TestShutdown(t *testing.T) {
	o, _ := ownerPair(t)
	ended := make(chan error)
	go func() {
		_, err := o.Read()
		ended <- err
	}()
	require.NoError(t, o.Shutdown())
	require.ErrorIs(t, <-ended, io.EOF)
	require.ErrorIs(t, o.Write(TypeDone, 0, 0, nil), unix.EPIPE)

	o, far := ownerPair(t)
	require.NoError(t, sendRaw(t, far, header(TypeDone, 0, 0, 1), nil))
	require.NoError(t, o.Shutdown())
	_, err := o.Read()
	require.NoError(t, err)
	_, err = o.Read()
	require.ErrorIs(t, err, io.EOF)
}

// TestRefuseFDs: the kernel refuses fds where they are sent.
func TestRefuseFDs(t *testing.T) {
	a, far := sockets(t, unix.SOCK_SEQPACKET)
	defer unix.Close(far) //nolint:errcheck // in a test
	c := unixConn(t, a)
	defer c.Close() //nolint:errcheck // in a test
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	fds := unix.UnixRights(null(t, 1)...)
	require.NoError(t, sendRaw(t, far, []byte{1}, fds), "the control")
	if err = RefuseFDs(raw); errors.Is(err, unix.ENOPROTOOPT) {
		t.Skip("needs Linux 6.16")
	}
	require.NoError(t, err)
	require.ErrorIs(t, sendRaw(t, far, []byte{1}, fds), unix.EPERM)
	require.NoError(t, sendRaw(t, far, []byte{1}, nil))
}
