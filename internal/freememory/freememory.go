// Package freememory reads how much memory of the host a process can still have. A process that
// passes the limit of a control group is killed, and gets no error.
package freememory

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Bytes returns how much more memory this process can have: what the machine
// has, or less if a control group limits it. root is where the system's files are.
func Bytes(root string) (free uint64, ok bool) {
	free, ok = Meminfo(root, "MemAvailable")
	for _, g := range memoryGroups(root) {
		if left, limited := g.available(); limited && (!ok || left < free) {
			free, ok = left, true
		}
	}
	return free, ok
}

// Meminfo returns a line of /proc/meminfo in bytes.
func Meminfo(root, name string) (uint64, bool) {
	text, _ := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(line, ":"); key == name {
			n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return n * 1024, err == nil
		}
	}
	return 0, false
}

// memoryGroup has the files of a control group that may limit memory.
type memoryGroup struct{ limit, used, stat, cache string }

// memoryGroups are the groups that this process is in, and all above them. In a
// container the path may be that of the machine outside. Then some of the groups
// do not exist here, and the top one is that of the container.
func memoryGroups(root string) []memoryGroup {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil
	}
	var list []memoryGroup
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		top := filepath.Join(root, "sys/fs/cgroup")
		g := memoryGroup{"memory.max", "memory.current", "memory.stat", "inactive_file"}
		if parts[1] != "" { // version 1, which has a tree for each controller
			if !slices.Contains(strings.Split(parts[1], ","), "memory") {
				continue
			}
			top = filepath.Join(top, "memory")
			g = memoryGroup{"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file"}
		}
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			dir := filepath.Join(top, at)
			list = append(list, memoryGroup{filepath.Join(dir, g.limit), filepath.Join(dir, g.used), filepath.Join(dir, g.stat), g.cache})
			if at == "/" {
				break
			}
		}
	}
	return list
}

// available returns how much memory the group can still have. Files in the page
// cache that were not used for a while count as used, but the system drops them
// when it needs memory.
func (g memoryGroup) available() (left uint64, limited bool) {
	limit, err := readNumber(g.limit)
	used, err2 := readNumber(g.used)
	if err != nil || err2 != nil {
		return 0, false
	}
	used -= min(used, g.reclaimable())
	return limit - min(limit, used), true
}

// reclaimable is the size of those files.
func (g memoryGroup) reclaimable() (n uint64) {
	text, _ := os.ReadFile(g.stat)
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == g.cache {
			n, _ = strconv.ParseUint(value, 10, 64) // 0 if it is no number
			return n
		}
	}
	return 0
}

// readNumber reads a file that has one number. If there is no limit, the file has
// the word max instead, which is an error.
func readNumber(file string) (uint64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}
