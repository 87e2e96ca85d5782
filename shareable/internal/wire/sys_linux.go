package wire

import (
	"encoding/binary"
	"net"

	"golang.org/x/sys/unix"
)

// controlSize has room for as many fds as the kernel sends at once, 253, and
// for more than one message: that fds are missing is then our fd limit's doing.
const controlSize = 2048

// receive takes the fds out of the control messages of a packet. If not all of
// them came, or a message is of another kind, it answers an error instead,
// ErrTruncated or a ProtocolError, and gives each fd to closeFD.
func receive(control []byte, flags int, closeFD func(int) error) ([]int, error) {
	var fds []int
	var bad error
	for len(control) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			bad = protocolf("malformed control message in %d bytes", len(control))
			break
		}
		control = rest
		known := h.Level == unix.SOL_SOCKET && (h.Type == unix.SCM_RIGHTS || h.Type == unix.SCM_PIDFD)
		for ; known && len(data) >= 4; data = data[4:] {
			// SCM_PIDFD has an error in place of a pidfd that could not be made.
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
	if bad != nil {
		closeAll(fds, closeFD)
		return nil, bad
	}
	return fds, nil
}

// cut says whether a packet was longer than the room for it.
func truncated(flags int) bool { return flags&unix.MSG_TRUNC != 0 }

func rights(fds []int) []byte { return unix.UnixRights(fds...) }

func closeFD(fd int) error { return unix.Close(fd) }

func keepsPackets(c *net.UnixConn) (bool, error) {
	kind, err := withFD(c, func(fd int) (int, error) {
		return unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	})
	return kind == unix.SOCK_SEQPACKET, err
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

func queued(c *net.UnixConn) (int, error) {
	return withFD(c, func(fd int) (int, error) { return unix.IoctlGetInt(fd, unix.SIOCOUTQ) })
}

// ask calls question while the socket cannot be closed.
func withFD[T any](c *net.UnixConn, question func(fd int) (T, error)) (T, error) {
	var answer T
	raw, err := c.SyscallConn()
	if err != nil {
		return answer, err
	}
	var asked error
	if err := raw.Control(func(fd uintptr) { answer, asked = question(int(fd)) }); err != nil {
		return answer, err
	}
	return answer, asked
}
