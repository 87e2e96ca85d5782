//go:build linux

package host

import (
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/internal/processes"
	"golang.org/x/sys/unix"
)

// What the machine tells, unless it could not be asked.
var (
	knownMapCount processes.Known[int]
	knownMemory   processes.Known[uint64]
	knownMachine  processes.Known[[]byte]
)

// maxMapCount is the kernel's limit of mappings in one process.
func maxMapCount() int {
	n, _ := knownMapCount.Get(func() (int, error) {
		n, err := readNumber("/proc/sys/vm/max_map_count")
		if err != nil {
			return 65530, err
		}
		return int(min(n, 1<<31-1)), nil
	})
	return n
}

// machineMemory is the memory that this process can have: the machine's, or the
// least limit of its control groups.
func machineMemory() uint64 {
	n, _ := knownMemory.Get(askMemory)
	return n
}

func askMemory() (total uint64, err error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 1 << 30, err
	}
	total = uint64(info.Totalram) * uint64(info.Unit)
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return total, err
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
			if n, err := readNumber(path.Join(root, dir, file)); err == nil && n > 0 {
				total = min(total, n)
			}
			if dir == "/" {
				break
			}
		}
	}
	return total, nil
}

// readNumber reads a file that holds one number.
func readNumber(name string) (uint64, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
}
