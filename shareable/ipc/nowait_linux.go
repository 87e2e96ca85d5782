package ipc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const noWait = unix.O_NONBLOCK // has a file opened without a wait for another process

// process is which process this is. What the system does not tell is zero.
type process struct {
	pid       int
	start     uint64
	boot      string
	namespace uint64
}

var thisProcess = sync.OnceValue(func() process {
	p := process{pid: os.Getpid()}
	p.start, _ = startOf(p.pid)
	if b, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		p.boot = strings.TrimSpace(string(b))
	}
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &st) == nil {
		p.namespace = st.Ino
	}
	return p
})

// startOf is when a process began, in clock ticks since the system started, 0 if the system
// does not tell, and whether it runs still. One that was not waited for does not run.
func startOf(pid int) (start uint64, runs bool) {
	if err := unix.Kill(pid, 0); errors.Is(err, unix.ESRCH) {
		return 0, false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, true // hidden, or it has ended just now, which the driver will find
	}
	// The name in parentheses may hold anything; the fields after it are the third and on.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const state, begin = 0, 19
	if len(fields) <= begin {
		return 0, true
	}
	start, _ = strconv.ParseUint(string(fields[begin]), 10, 64)
	return start, !bytes.ContainsAny(fields[state], "ZXx")
}
