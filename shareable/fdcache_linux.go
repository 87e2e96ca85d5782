package shareable

import (
	"errors"

	"golang.org/x/sys/unix"
)

// fileLimit is how many descriptors this process may have open.
func fileLimit() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur > 1<<20 {
		return 1 << 20
	}
	return int(l.Cur)
}

func closeFD(fd int) error { return unix.Close(fd) }

// tooManyRefs reports whether a send failed because the user has too many
// descriptors in flight, in all sockets together.
func tooManyRefs(err error) bool { return errors.Is(err, unix.ETOOMANYREFS) }

// dup returns another descriptor of the same file. The caller must close it.
func dup(fd int) (int, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, systemError("fcntl(F_DUPFD_CLOEXEC)", err)
	}
	return own, nil
}
