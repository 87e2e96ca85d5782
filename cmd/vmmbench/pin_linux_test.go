package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// allowedCPUs is for each thread of the process the list of CPUs that it may run on.
func allowedCPUs(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/status")
	require.NoError(t, err)
	var list []string
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), "Cpus_allowed_list:")
		list = append(list, strings.Fields(rest)[0])
	}
	require.NotEmpty(t, list)
	return list
}

// A process that is kept on a CPU runs there with all its threads, and may run elsewhere again.
func TestPinned(t *testing.T) {
	before, procs := allowedCPUs(t), runtime.GOMAXPROCS(0)
	var during []string
	p := &pinFlags{cpus: strings.FieldsFunc(before[0], func(r rune) bool { return r == '-' || r == ',' })[0], node: -1}
	undo, err := p.pin()
	require.NoError(t, err)
	during = allowedCPUs(t)
	require.Equal(t, 1, runtime.GOMAXPROCS(0))
	require.NoError(t, undo())
	for _, thread := range during {
		require.Equal(t, p.cpus, thread)
	}
	require.Equal(t, before[0], allowedCPUs(t)[0])
	require.Equal(t, procs, runtime.GOMAXPROCS(0))

	for _, x := range []struct{ args, want string }{
		{"--cpus 0-", "no list of numbers"},
		{"--cpus 5000", "CPU 5000"},
		{"--cpus 99999", "CPU 99999"},
		{"--numa 999", "no NUMA node 999"},
		{"--numa -2", "want 0 or more"},
		{"--numa 0 --cpus 0", "want one of them"},
	} {
		code, _, stderr := bench(t, append([]string{"bw", "--device", "host", "--dry-run"}, strings.Fields(x.args)...)...)
		require.Equal(t, report.ExitUsage, code, x.args)
		require.Contains(t, stderr, x.want)
	}
	code, _, stderr := bench(t, "bw", "--device", "host", "--dry-run", "--cpus", p.cpus)
	require.Equal(t, report.ExitPassed, code, stderr)
	require.Equal(t, before[0], allowedCPUs(t)[0])
}
