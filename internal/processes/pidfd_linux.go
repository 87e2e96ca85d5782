package processes

import (
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// PIDFD is a pidfd of a process that started at a time, and of no other that has its number now. Start 0: not
// known. The caller closes it. A pid of 0, of another namespace, is ENOPROTOOPT.
func PIDFD(pid int, start uint64) (int, error) {
	if pid <= 0 {
		return -1, unix.ENOPROTOOPT
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil || start == 0 {
		return fd, err
	}
	if now := StartOf(pid); now != 0 && now != start {
		_ = unix.Close(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}

// IsGone reports whether an error of PIDFD, or of asking a socket for one, is that the process has ended.
func IsGone(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODATA)
}

// EndsIn waits for the end of the process of a pidfd, for a time at most, and reports whether it has ended.
func EndsIn(pidfd int, limit time.Duration) bool {
	for end := time.Now().Add(limit); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(max(time.Until(end), 0)/time.Millisecond))
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// File is a file of a pidfd, which can be waited for without a thread. It takes the pidfd.
func File(pidfd int) (*os.File, error) {
	if err := unix.SetNonblock(pidfd, true); err != nil {
		_ = unix.Close(pidfd)
		return nil, err
	}
	return os.NewFile(uintptr(pidfd), "pidfd"), nil
}

// StartOf is when a process started, as ID.Start has it; 0 if that is not known.
func StartOf(pid int) uint64 { return statOf(pid).start }

// IsExiting reports whether a process is about to be gone. One that the system does not show is not.
func IsExiting(pid int) bool { return statOf(pid).exiting }

func statOf(pid int) stat {
	if pid <= 0 {
		return stat{}
	}
	s, _ := readStat("/proc/" + strconv.Itoa(pid) + "/stat") // zeros with an error
	return s
}
