package wire

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// The files by which IsOwn knows; they are variables for tests.
var (
	overflowFile = "/proc/sys/kernel/overflowuid"
	mapFile      = "/proc/self/uid_map"
)

// defaultOverflow is the kernel's overflow id, unless someone has changed it.
const defaultOverflow = 65534

// alone is the user of this process, plus 1, once it is known that no other has the same id here.
var alone atomic.Uint64

// IsOwn reports whether an id that the kernel shows of another process, or of a file, is that of this
// process's user and of no other. A user namespace shows all users that it does not map as one, the
// overflow id. So where it does not map all of them that id is no one's own, also if that cannot be
// seen: who has it has to be named.
//
// What was not seen is looked for again: a namespace gets its map after its first process. Safe for
// concurrent use.
func IsOwn(uid uint32) bool {
	if uid != uint32(os.Getuid()) {
		return false
	}
	known := alone.Load() == uint64(uid)+1
	if !known && (uid != overflowID() || mapsAll()) {
		alone.Store(uint64(uid) + 1)
		return true
	}
	return known
}

func overflowID() uint32 {
	b, err := os.ReadFile(overflowFile)
	if err != nil {
		return defaultOverflow
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return defaultOverflow
	}
	return uint32(n)
}

// mapsAll reports whether each id of the system has one here.
func mapsAll() bool {
	b, err := os.ReadFile(mapFile)
	if errors.Is(err, fs.ErrNotExist) { // a kernel without user namespaces, if it is not /proc that is missing
		_, err := os.Stat("/proc/self/stat")
		return err == nil
	}
	var all uint64
	for line := range strings.Lines(string(b)) {
		var inside, outside, n uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &n); err != nil {
			return false
		}
		all += n
	}
	return all >= 1<<32-1 // the last one is no user's
}
