// The race detector has memory of its own, which counts for the group.

//go:build !race

package vmm_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/internal/hostcopy"
)

// memoryGroup makes a control group of at most so many bytes below that of this process.
func memoryGroup(t *testing.T, most int) (dir string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		top, limit := "/sys/fs/cgroup", "memory.max"
		switch {
		case len(parts) == 3 && parts[1] == "memory":
			top, limit = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case len(parts) != 3 || parts[1] != "":
			continue
		}
		dir := filepath.Join(top, parts[2], fmt.Sprintf("cuvmm-%d", os.Getpid()))
		if err = os.Mkdir(dir, 0o700); err != nil {
			continue
		}
		t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
		if err = os.WriteFile(filepath.Join(dir, limit), fmt.Append(nil, most), 0o600); err == nil {
			return dir
		}
	}
	t.Skip("needs a control group for memory that it may make one below of:", err)
	return ""
}

// TestSleepBeyondTheGroup: contents that would pass the limit of the process's control group stay on
// the device, and no process is killed. With the check off, the process is killed.
func TestSleepBeyondTheGroup(t *testing.T) {
	const size, spare = 64 << 20, 48 << 20 // of the contents; beyond what is used before
	if dir := os.Getenv("VMM_TEST_GROUP"); dir != "" {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, os.Getpid()), 0o600))
		if os.Getenv("VMM_TEST_UNCHECKED") != "" {
			hostcopy.Root = t.TempDir() // where nothing says how much there is
		}
		w := newWorld(t, 1)
		g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: size})
		require.NoError(t, err)
		want := pattern(size, 3)
		require.NoError(t, g.Append(want))
		require.ErrorIs(t, vmm.Sleep(vmm.SleepKeep, g), vmm.ErrOutOfMemory)
		got := make([]byte, page)
		_, err = g.ReadAt(got, size-page)
		require.NoError(t, err)
		require.Equal(t, want[size-page:], got)
		require.Zero(t, w.devs[0].Stats().HostCopies)
		require.NoError(t, g.Close())
		return
	}
	if onCUDA {
		t.Skip("on a GPU the contents are not the group's")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	group := memoryGroup(t, 2*size+spare)
	run := func(env ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestSleepBeyondTheGroup$", "-test.v")
		cmd.Env = append(os.Environ(), append(env, "VMM_TEST_GROUP="+group)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run()
	require.NoError(t, err, out)
	require.NotContains(t, out, "SKIP")
	_, err = run("VMM_TEST_UNCHECKED=1")
	require.ErrorContains(t, err, "signal: killed")
}
