package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// memory is how much memory of the host both have: the files in memory that they have open.
func (both pair) memory() (bytes uint64) {
	for _, p := range both {
		all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.cmd.Process.Pid))
		for _, fd := range all {
			var st syscall.Stat_t
			link, _ := os.Readlink(fd)
			if strings.HasPrefix(link, "/memfd:cuvmm") && syscall.Stat(fd, &st) == nil {
				bytes += uint64(st.Blocks) * 512
			}
		}
	}
	return bytes
}
