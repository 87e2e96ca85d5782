package wire

import (
	"encoding/binary"
	"net"

	"golang.org/x/sys/unix"
)

// controlSize is enough for the 253 fds that the kernel sends at most, in several
// messages. So if fds are missing, the cause is the limit on open files.
const controlSize = 2048

// receive takes the fds out of the control messages of a packet. If not all of
// them came, or a message is of another kind, it also returns an error: ErrTruncated
// or a ProtocolError.
func receive(control []byte, flags int) (fds []int, bad error) {
	// All messages are read even after a bad one, so that no fd stays open.
	for len(control) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			bad = protocolf("malformed control message in %d bytes", len(control))
			break
		}
		control = rest
		known := h.Level == unix.SOL_SOCKET && (h.Type == unix.SCM_RIGHTS || h.Type == unix.SCM_PIDFD)
		for ; known && len(data) >= 4; data = data[4:] {
			// In SCM_PIDFD a negative number is an error instead of a pidfd.
			if fd := int(int32(binary.NativeEndian.Uint32(data))); fd >= 0 {
				fds = append(fds, fd)
			}
		}
		if !known || h.Type != unix.SCM_RIGHTS || len(data) > 0 {
			bad = protocolf("control message of level %d, type %d and %d bytes", h.Level, h.Type, h.Len)
		}
	}
	if bad == nil && flags&unix.MSG_CTRUNC != 0 {
		bad = ErrTruncated
	}
	return fds, bad
}

// truncated reports whether a packet was longer than the buffer.
func truncated(flags int) bool { return flags&unix.MSG_TRUNC != 0 }

func rights(fds []int) []byte { return unix.UnixRights(fds...) }

func closeFD(fd int) error { return unix.Close(fd) }

func keepsPackets(c *net.UnixConn) (bool, error) {
	kind, err := withFD(c, func(fd int) (int, error) {
		return unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	})
	return kind == unix.SOCK_SEQPACKET, err
}

func peerPIDFD(c *net.UnixConn) (int, error) {
	return withFD(c, func(fd int) (int, error) { return unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD) })
}

func peerCred(c *net.UnixConn) (Cred, error) {
	return withFD(c, func(fd int) (Cred, error) {
		u, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return Cred{}, err
		}
		return Cred{PID: u.Pid, UID: u.Uid, GID: u.Gid}, nil
	})
}

// passCred has each packet that is read from now on come with its sender's credentials.
func passCred(c *net.UnixConn) error {
	_, err := withFD(c, func(fd int) (int, error) {
		return 0, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	})
	return err
}

func shutdown(c *net.UnixConn) error {
	_, err := withFD(c, func(fd int) (int, error) { return 0, unix.Shutdown(fd, unix.SHUT_RDWR) })
	return err
}

func queued(c *net.UnixConn) (int, error) {
	return withFD(c, func(fd int) (int, error) { return unix.IoctlGetInt(fd, unix.SIOCOUTQ) })
}

// withFD calls f with the socket's descriptor, which stays open meanwhile.
func withFD[T any](c *net.UnixConn, f func(fd int) (T, error)) (T, error) {
	var result T
	raw, err := c.SyscallConn()
	if err != nil {
		return result, err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { result, failed = f(int(fd)) }); err != nil {
		return result, err
	}
	return result, failed
}
