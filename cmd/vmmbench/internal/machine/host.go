package machine

import (
	"errors"
	"runtime"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/internal/freememory"
)

// Host describes the machine, as far as it can be read, without its state. root is
// where the system's files are, "/" but in tests.
func Host(root string) report.Host {
	cpu, _ := field(root, "proc/cpuinfo", "model name")
	kernel, _ := line(root, "proc/sys/kernel/osrelease")
	maps, err := line(root, "proc/sys/vm/max_map_count")
	h := report.Host{
		OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version(),
		Kernel: report.Text(kernel), CPU: report.Text(strings.TrimLeft(cpu, "\t :")),
		Limits: []report.Limit{
			softLimit(root, "nofile", "Max open files"),
			softLimit(root, "memlock", "Max locked memory"),
			limit("vm.max_map_count", maps, err),
		},
	}
	if n, ok := freememory.Meminfo(root, "MemTotal"); ok {
		h.Memory = &n
	}
	return h
}

// softLimit is a limit of this process, which the kernel lists as what.
func softLimit(root, name, what string) report.Limit {
	text, err := field(root, "proc/self/limits", what)
	soft, _, _ := strings.Cut(text, " ")
	return limit(name, soft, err)
}

// limit is a limit whose value is a number, or a word that is the reason why there is none.
func limit(name, value string, err error) report.Limit {
	l := report.Limit{Name: name}
	n, notNumber := strconv.ParseUint(value, 10, 64)
	switch {
	case err != nil:
		l.Reason = report.Text(err.Error())
	case notNumber != nil:
		l.Reason = report.Text(value)
	default:
		l.Value = &n
	}
	return l
}

// field returns what stands behind a name at the beginning of a line.
func field(root, file, name string) (string, error) {
	text, err := line(root, file)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value), nil
		}
	}
	if err == nil {
		err = errors.New("the system does not say")
	}
	return "", err
}
