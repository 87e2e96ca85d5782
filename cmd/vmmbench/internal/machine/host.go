package machine

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/internal/freememory"
)

// Host describes the machine, as far as it can be read, without its state. root is
// where the system's files are, "/" but in tests.
func Host(root string) report.Host {
	h := report.Host{
		OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version(),
		Kernel: kernel(), CPU: report.Text(procField(filepath.Join(root, "proc/cpuinfo"), "model name")),
		Limits: append(limits(), mapCount(root)),
	}
	if n, ok := freememory.Meminfo(root, "MemTotal"); ok {
		h.Memory = &n
	}
	return h
}

// procField returns the value of the first line "name : value" in a file of /proc,
// empty if there is none.
func procField(file, name string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// mapCount is the number of mappings that the system allows a process.
func mapCount(root string) report.Limit {
	l := report.Limit{Name: "vm.max_map_count"}
	text, err := os.ReadFile(filepath.Join(root, "proc/sys/vm/max_map_count"))
	n, notNumber := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err == nil {
		err = notNumber
	}
	if err != nil {
		l.Reason = report.Text(err.Error())
		return l
	}
	l.Value = &n
	return l
}
