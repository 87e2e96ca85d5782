//go:build linux

package host

import (
	"github.com/cuvmm/cuvmm/internal/processes"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// A process is named by a word: its pid and, in the lower bits, when it started. The pid counts
// in the pid namespace of whoever has made the handle or the event.
const startBits = 42

func wordOf(id processes.ID) uint64 { return uint64(id.PID)<<startBits | id.Start&(1<<startBits-1) }

func pidOf(word uint64) int { return int(word >> startBits) }

// self is this process.
func (d *Driver) self() (processes.ID, error) {
	id, err := processes.Self()
	if err != nil {
		err = d.fail("read /proc/self/stat", driver.ErrOutOfMemory, err)
	}
	return id, err
}

// isSelf reports whether a word of a pid namespace names this process.
func isSelf(word, namespace uint64) bool {
	id, err := processes.Self()
	return err == nil && word == wordOf(id) && namespace == id.Namespace
}

// ended reports whether the process of a word is known to have ended. While it is not known, for
// want of a descriptor for one, the process runs.
func ended(word, namespace uint64) bool {
	return hasEnded(processes.ID{PID: pidOf(word), Start: word & (1<<startBits - 1), Namespace: namespace})
}

// hasEnded is for the control of a test.
var hasEnded = processes.Ended
