//go:build linux

package wire

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// sendRaw sends one packet as it is. The packages of others add a byte to an
// empty one that has fds.
func sendRaw(t testing.TB, fd int, packet, control []byte) error {
	t.Helper()
	// Safety: the message points to what lives until the call has returned.
	var m unix.Msghdr
	var part unix.Iovec
	if len(packet) > 0 {
		part.Base = &packet[0]
		part.SetLen(len(packet))
		m.Iov = &part
		m.SetIovlen(1)
	}
	if len(control) > 0 {
		m.Control = &control[0]
		m.SetControllen(len(control))
	}
	n, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)), unix.MSG_NOSIGNAL)
	if errno != 0 {
		return errno
	}
	require.Equal(t, len(packet), int(n))
	return nil
}
