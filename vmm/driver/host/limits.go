//go:build linux

package host

import (
	"bytes"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

const (
	// spareMappings stay free for the Go runtime, thread stacks and libraries.
	spareMappings = 1024

	// addressLimit is how much a Driver reserves at most: three quarters of
	// what a process can address, because Go dies when its heap finds no
	// addresses to grow into.
	addressLimit = 3 << 45
)

// take counts n more kernel mappings, or answers ErrLimit. At the kernel's own
// limit even the undo of a call fails, so the refusal comes earlier.
// The caller holds mem.
func (d *Driver) take(verb string, n int) error {
	if d.mappingLimit == 0 {
		d.mappingLimit = max(1, maxMapCount()-mapped()-spareMappings)
	}
	if d.mappings+n > d.mappingLimit {
		return rule(verb, driver.ErrLimit, "%d of %d mappings are in use (vm.max_map_count, less a margin)", d.mappings, d.mappingLimit)
	}
	d.mappings += n
	return nil
}

// maxMapCount is the kernel's limit of mappings in one process.
var maxMapCount = sync.OnceValue(func() int {
	if n, ok := readNumber("/proc/sys/vm/max_map_count"); ok {
		return int(min(n, 1<<31-1))
	}
	return 65530
})

// mapped is how many mappings the process has now; 0 where /proc is missing.
func mapped() int {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0
	}
	return bytes.Count(b, []byte{'\n'})
}

// machineMemory is the memory this process can have: the machine's, or the
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
