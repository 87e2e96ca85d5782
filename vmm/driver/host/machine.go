//go:build linux

package host

import (
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// maxMapCount is the kernel's limit of mappings in one process.
var maxMapCount = sync.OnceValue(func() int {
	if n, ok := readNumber("/proc/sys/vm/max_map_count"); ok {
		return int(min(n, 1<<31-1))
	}
	return 65530
})

// machineMemory is the memory that this process can have: the machine's, or the
// least limit of its control groups.
var machineMemory = sync.OnceValue(func() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 1 << 30
	}
	total := uint64(info.Totalram) * uint64(info.Unit)
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return total
	}
	for line := range strings.Lines(string(groups)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		root, file := "/sys/fs/cgroup", "memory.max"
		if f[0] != "0" {
			if f[1] != "memory" {
				continue
			}
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		// A parent's limit holds for its children too.
		for dir := path.Clean("/" + f[2]); ; dir = path.Dir(dir) {
			if n, ok := readNumber(path.Join(root, dir, file)); ok && n > 0 {
				total = min(total, n)
			}
			if dir == "/" {
				break
			}
		}
	}
	return total
})

// readNumber reads a file that holds one number.
func readNumber(name string) (uint64, bool) {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}
