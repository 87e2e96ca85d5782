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

// waitExit waits until a process that exits is gone. The system closes the descriptors of
// such a process in any order, so its connection can end while the device still runs what it
// had queued. Until all are closed that work can write to memory that the next writer gets.
//
// Of a process in another namespace, which has no pid here, it is not known whether it exits: it is waited for.
func waitExit(pid int, pidfd func() (int, error)) {
	if pid > 0 && !isExiting(pid) {
		return
	}
	fd, err := pidfd()
	if errors.Is(err, unix.ENOPROTOOPT) && pid > 0 { // an old kernel
		fd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil { // it is gone
		return
	}
	defer closeFD(fd)
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(exitTime/time.Millisecond))
}

// isExiting reports whether a process is about to be gone. One that the system does not show
// is not.
func isExiting(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || pid <= 0 {
		return false
	}
	// The name in parentheses may hold anything; the fields after it are the third and on.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const flags, exiting = 6, 0x4 // PF_EXITING
	if len(fields) <= flags {
		return false
	}
	n, err := strconv.ParseUint(string(fields[flags]), 10, 64)
	return err == nil && n&exiting != 0
}
