package main

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// freeMemory is how much more memory this process may take: what the machine
// has available, or what a control group leaves if that is less. root is where
// the system's files are.
func freeMemory(root string) (free uint64, ok bool) {
	free, ok = meminfo(root, "MemAvailable")
	for _, g := range memoryGroups(root) {
		if left, limited := g.available(); limited && (!ok || left < free) {
			free, ok = left, true
		}
	}
	return free, ok
}

// meminfo is a line of /proc/meminfo in bytes.
func meminfo(root, name string) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimSuffix(procField(filepath.Join(root, "proc/meminfo"), name), " kB"), 10, 64)
	return n * 1024, err == nil
}

// memoryGroup is a control group that may limit memory: its files.
type memoryGroup struct{ limit, used, stat, cache string }

// memoryGroups are the groups that this process is in, with all above them. In
// a container the path may be the one that the machine outside knows; then some
// of them are not there, and the top one is the container's.
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
		if parts[1] != "" { // version 1, a tree for each controller
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

// left is what may still be taken. Files in the page cache that nobody has used
// for a while count as used, but make room.
func (g memoryGroup) available() (left uint64, limited bool) {
	limit, ok := readNumber(g.limit)
	if !ok {
		return 0, false
	}
	used, ok := readNumber(g.used)
	if !ok {
		return 0, false
	}
	used -= min(used, g.reclaimable())
	return limit - min(limit, used), true
}

func (g memoryGroup) reclaimable() uint64 {
	text, err := os.ReadFile(g.stat)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == g.cache {
			n, _ := strconv.ParseUint(value, 10, 64) // 0 if it is no number
			return n
		}
	}
	return 0
}

// number is what a file holds if that is a number. No limit is the word max.
func readNumber(file string) (uint64, bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
