package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// exitTime is the longest wait for a process that exits to be gone.
const exitTime = 2 * time.Second

// waitExit waits until a process that exits is gone, and reports whether it is. The system closes
// the descriptors of such a process in any order, so its connection can end while the device still
// runs what it had queued. Until all are closed that work can write to memory that the next writer
// gets.
//
// Of a process in another namespace, which has no pid here, it is not known whether it exits: it is
// waited for.
func waitExit(pid int, pidfd func() (int, error)) (gone bool) {
	fd, err := pidfd()
	if errors.Is(err, unix.ENOPROTOOPT) && pid > 0 { // an old kernel
		fd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		return isGone(err)
	}
	defer closeFD(fd)
	var limit time.Duration
	if pid <= 0 || isExiting(pid) {
		limit = exitTime
	}
	return endsIn(fd, limit)
}

// hasExited reports whether a process is known to have ended.
func hasExited(pidfd func() (int, error)) bool {
	fd, err := pidfd()
	if err != nil {
		return isGone(err)
	}
	defer closeFD(fd)
	return endsIn(fd, 0)
}

// pidfd is of that process, and of no other that has its number now.
func (p *process) pidfd() (int, error) {
	if p.pid <= 0 {
		return -1, unix.ENOPROTOOPT
	}
	fd, err := unix.PidfdOpen(int(p.pid), 0)
	if err != nil || p.began == 0 {
		return fd, err
	}
	if now := startTime(int(p.pid)); now != 0 && now != p.began {
		closeFD(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}

// isGone reports whether that is why there is no pidfd of a process.
func isGone(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODATA)
}

// endsIn waits for the end of a process.
func endsIn(pidfd int, limit time.Duration) bool {
	for end := time.Now().Add(limit); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(max(time.Until(end), 0)/time.Millisecond))
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// isExiting reports whether a process is about to be gone. One that the system does not show
// is not.
func isExiting(pid int) bool {
	const flags, exiting = 6, 0x4 // PF_EXITING
	n, ok := statOf(pid, flags)
	return ok && n&exiting != 0
}

// startTime is when a process began, in ticks since the system did; 0 if that is not known.
func startTime(pid int) uint64 {
	const began = 19
	n, _ := statOf(pid, began)
	return n
}

// statOf is a number of what the system says of a process, counted from the third on.
func statOf(pid, field int) (n uint64, ok bool) {
	if pid <= 0 {
		return 0, false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The name in parentheses may hold anything; the fields after it are the third and on.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) <= field {
		return 0, false
	}
	n, err = strconv.ParseUint(string(fields[field]), 10, 64)
	return n, err == nil
}
