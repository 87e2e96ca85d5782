package wire

import (
	"errors"
	"math"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// RefuseFDs has the kernel refuse packets with fds where they are sent: on this
// socket and, if it listens, on every connection to it. Before Linux 6.16 it returns
// ENOPROTOOPT.
func RefuseFDs(c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0)
	})
	if err == nil {
		err = failed
	}
	return err
}

// waitForPacket waits until a packet or the end can be read, and returns how many bytes the
// packet has and whether it has fds. It takes nothing.
func waitForPacket(c syscall.RawConn) (size int, fds bool, err error) {
	var failed error
	err = c.Read(func(fd uintptr) bool {
		size, _, fds, failed = peek(int(fd), nil)
		return !errors.Is(failed, unix.EAGAIN)
	})
	if err == nil {
		err = failed
	}
	return size, fds, err
}

// peek looks at the next packet. control has no room for fds, so the kernel says that
// there are some and installs none. With MSG_TRUNC it returns the size of the whole packet.
// message is that there was a control message.
func peek(fd int, control []byte) (size int, message, fds bool, err error) {
	var first [1]byte
	for {
		n, oobn, flags, _, err := unix.Recvmsg(fd, first[:], control, unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), oobn > 0, flags&unix.MSG_CTRUNC != 0, err
		}
	}
}

// discard is Conn.Discard. Every packet comes with its sender's credentials here, and
// the end of the connection does not.
func discard(c *net.UnixConn) (empty bool) {
	empty, err := withFD(c, func(fd int) (bool, error) {
		left := math.MaxInt
		return discardPackets(fd, &left)
	})
	return empty && err == nil
}

// discardPackets takes up to left packets, and counts left down. It returns true if there is none
// any more, and false at one with descriptors.
func discardPackets(fd int, left *int) (empty bool, err error) {
	control := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return false, err
	}
	for ; *left > 0; *left-- {
		_, message, fds, err := peek(fd, control)
		switch {
		case errors.Is(err, unix.ECONNRESET): // reported once, before what is unread
			continue
		case errors.Is(err, unix.EAGAIN):
			return true, nil
		case err != nil, fds:
			return false, err
		case !message:
			return true, nil
		}
		if _, _, _, _, err := unix.Recvmsg(fd, nil, nil, unix.MSG_DONTWAIT); err != nil {
			return false, err
		}
	}
	return false, nil
}

// maxLate is how many packets may come from a peer that has been told of the end.
const maxLate = 1024

// awaitEnd is Conn.AwaitEnd.
func awaitEnd(c *net.UnixConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	left := maxLate
	_ = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd)}}
		if _, err := unix.Poll(p, 0); err != nil || p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0 {
			return true
		}
		empty, err := discardPackets(int(fd), &left)
		return !empty || err != nil
	})
}
