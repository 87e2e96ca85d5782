//go:build linux

package host

import (
	"bytes"
	"os"
	"strconv"
	"sync"
)

// The id of a process is its pid and, in the lower bits, when it started: a pid is used
// again.
const startBits = 42

// processID is the id of a process that is running, else 0. A zombie has ended.
func processID(pid int) uint64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The name, in parentheses, may hold any characters.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const state, started = 0, 19
	if len(f) <= started || f[state][0] == 'Z' || f[state][0] == 'X' {
		return 0
	}
	at, err := strconv.ParseUint(string(f[started]), 10, 64)
	if err != nil {
		return 0
	}
	return uint64(pid)<<startBits | at&(1<<startBits-1)
}

func pidOf(id uint64) int { return int(id >> startBits) }

// running reports whether the process of an id has not ended.
func running(id uint64) bool {
	return id != 0 && (id == selfID() || processID(pidOf(id)) == id)
}

// selfID is the id of this process, 0 without /proc.
var selfID = sync.OnceValue(func() uint64 { return processID(os.Getpid()) })
