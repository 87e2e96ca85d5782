// Package freememory reads how much memory of the host a process can still have. A process that
// passes the limit of a control group is killed, and gets no error.
package freememory

import (
	"fmt"
	"math"
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
	groups, _ := Groups(root, "memory")
	for _, g := range groups {
		limit, used, err := g.Memory()
		if left := limit - min(limit, used); err == nil && limit != NoLimit && (!ok || left < free) {
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

// Group is a control group that limits a resource.
type Group struct {
	Dir string // where its files are
	v1  bool
}

// Groups are the groups of a controller, such as memory, that this process is in, and all above them. The one at the
// top is the last. In a container the path may be that of the machine outside. Then some of the groups do not exist
// here, and the top one is that of the container.
func Groups(root, controller string) (list []Group, err error) {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		top := filepath.Join(root, "sys/fs/cgroup")
		v1 := parts[1] != "" // which has a tree for each controller
		if v1 {
			if !slices.Contains(strings.Split(parts[1], ","), controller) {
				continue
			}
			top = filepath.Join(top, controller)
		}
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			list = append(list, Group{filepath.Join(top, at), v1})
			if at == "/" {
				break
			}
		}
	}
	return list, nil
}

// NoLimit is a limit if there is none.
const NoLimit = math.MaxUint64

// leastNone: groups of version 1 that limit nothing have the largest multiple of a page in an int64.
const leastNone = 1 << 62

// Memory is the limit of the host's memory that the group may use, and what it uses. Files in the page cache that
// were not used for a while are not among that: the system drops them when it needs memory.
func (g Group) Memory() (limit, used uint64, err error) {
	current, cache := "memory.current", "inactive_file"
	if g.v1 {
		current, cache = "memory.usage_in_bytes", "total_inactive_file"
	}
	if limit, err = readNumber(g.MemoryLimit()); err != nil {
		return 0, 0, err
	}
	if limit >= leastNone {
		limit = NoLimit
	}
	if used, err = readNumber(filepath.Join(g.Dir, current)); err != nil {
		return 0, 0, err
	}
	return limit, used - min(used, g.reclaimable(cache)), nil
}

// MemoryLimit is the file that has the limit of Memory.
func (g Group) MemoryLimit() string {
	if g.v1 {
		return filepath.Join(g.Dir, "memory.limit_in_bytes")
	}
	return filepath.Join(g.Dir, "memory.max")
}

// reclaimable is the size of files in the page cache, by their name in memory.stat.
func (g Group) reclaimable(cache string) (n uint64) {
	text, _ := os.ReadFile(filepath.Join(g.Dir, "memory.stat"))
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == cache {
			n, _ = strconv.ParseUint(value, 10, 64) // 0 if it is no number
			return n
		}
	}
	return 0
}

// readNumber reads a file of a group that has one number.
func readNumber(file string) (uint64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	n, err := ParseLimit(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// ParseLimit parses a value in a file of a group: a number, or max, which is NoLimit.
func ParseLimit(text string) (uint64, error) {
	if text == "max" {
		return NoLimit, nil
	}
	return strconv.ParseUint(text, 10, 64)
}
