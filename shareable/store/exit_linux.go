package store

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/processes"
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
		return processes.IsGone(err)
	}
	defer closeFD(fd)
	var limit time.Duration
	if pid <= 0 || processes.IsExiting(pid) {
		limit = exitTime
	}
	return processes.EndsIn(fd, limit)
}

// hasExited reports whether a process is known to have ended.
func hasExited(pidfd func() (int, error)) bool {
	fd, err := pidfd()
	if err != nil {
		return processes.IsGone(err)
	}
	defer closeFD(fd)
	return processes.EndsIn(fd, 0)
}
