//go:build linux

package shareable

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendRaw sends one packet as it is. The packages of others add a byte to an
// empty one that has descriptors.
func sendRaw(fd int, packet, control []byte) error {
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
	for {
		_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)), unix.MSG_NOSIGNAL)
		switch errno {
		case 0:
			return nil
		case unix.EINTR: // with a time limit the system does not go on by itself
		default:
			return errno
		}
	}
}
