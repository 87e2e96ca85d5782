package processes

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

var (
	self Known[ID]
	boot Known[string]
)

// Self is this process. If /proc cannot be read the error is the system's: ENOENT where it is
// not mounted, EMFILE where the process has no descriptor left.
func Self() (ID, error) {
	return self.Get(func() (ID, error) {
		s, err := readStat("/proc/self/stat")
		if err != nil {
			return ID{}, err
		}
		id := ID{PID: os.Getpid(), Start: s.start}
		var ns syscall.Stat_t
		if syscall.Stat("/proc/self/ns/pid", &ns) == nil {
			id.Namespace = ns.Ino
		}
		return id, nil
	})
}

// Boot is which start of the system this is. The error is as of Self.
func Boot() (string, error) {
	return boot.Get(func() (string, error) {
		b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		return strings.TrimSpace(string(b)), bare(err)
	})
}

// Ended reports whether a process is known to have ended. A zombie has. One of another pid
// namespace is not known: its number means nothing here. Nor is what /proc shows of a number, if
// it is that of another namespace.
func Ended(id ID) bool {
	me, err := Self()
	switch {
	case err != nil || id.PID <= 0 || id.Namespace != me.Namespace:
		return cannotLook
	case id.PID == me.PID:
		return id.Start != 0 && id.Start != me.Start
	}
	if errors.Is(syscall.Kill(id.PID, 0), syscall.ESRCH) { // which needs no descriptor
		return true
	}
	if !Shown() {
		return cannotLook
	}
	s, err := readStat("/proc/" + strconv.Itoa(id.PID) + "/stat")
	if err != nil { // hidden, no descriptor, or it has ended just now
		return cannotLook
	}
	return s.dead || id.Start != 0 && id.Start != s.start
}

// cannotLook is what Ended reports of a process that it cannot look at.
var cannotLook = false

// Shown reports whether /proc shows processes by the numbers that they have here.
func Shown() bool {
	pid, err := os.Readlink("/proc/self")
	return err == nil && pid == strconv.Itoa(os.Getpid())
}

// stat is what a file of /proc says of a process.
type stat struct {
	start   uint64
	dead    bool
	exiting bool // about to be dead
}

func readStat(name string) (stat, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return stat{}, bare(err)
	}
	// The name, in parentheses, may hold any characters.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const state, flags, started = 0, 6, 19
	if len(f) <= started {
		return stat{}, syscall.EINVAL
	}
	at, err := strconv.ParseUint(string(f[started]), 10, 64)
	if err != nil {
		return stat{}, syscall.EINVAL
	}
	const exiting = 0x4 // PF_EXITING
	bits, _ := strconv.ParseUint(string(f[flags]), 10, 64)
	return stat{start: at, dead: bytes.ContainsAny(f[state], "ZXx"), exiting: bits&exiting != 0}, nil
}

// bare is the system's own error.
func bare(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
