package main

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestRolesInPython plays main in one language and the other roles in the other, on a GPU.
func TestRolesInPython(t *testing.T) {
	mod, err := kernel.Load(vmmtest.Drivers()[1].Device(t), code)
	if errors.Is(err, vmm.ErrNotSupported) {
		testgate.Require(t, "nvrtc", err)
	}
	require.NoError(t, err)
	require.NoError(t, mod.Close())
	const modules = "import sys; assert sys.version_info >= (3, 9); from cuda.bindings import driver, nvrtc, runtime"
	if out, err := exec.CommandContext(t.Context(), "python3", "-c", modules).CombinedOutput(); err != nil {
		t.Skipf("needs python3 that runs %q: %v\n%s", modules, err, out)
	}
	inGo := func(role, dir string) *exec.Cmd {
		return start(t, role, "-dir", dir, "-device", "cuda:0", "-count", "100000")
	}
	inPython := func(role, dir string) *exec.Cmd {
		return exec.CommandContext(t.Context(), "python3", "-B", "roles.py", role, dir, "100000")
	}
	for name, as := range map[string]struct {
		main, other func(role, dir string) *exec.Cmd
	}{
		"main in Go": {inGo, inPython}, "main in Python": {inPython, inGo}, "all in Python": {inPython, inPython},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cmd := as.main("main", dir)
			lines := beginAs(t, cmd)
			for _, c := range []struct{ role, number string }{{"memory", "8"}, {"rtc", "11"}, {"rtc", "14"}} {
				out, err := as.other(c.role, dir).CombinedOutput()
				require.NoError(t, err, string(out))
				require.Equal(t, c.role+" has changed 100000 numbers on cuda:0\n", string(out))
				says(t, lines, "after "+c.role+" all 100000 numbers are "+c.number)
			}
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
			require.False(t, lines.Scan(), "%q", lines.Text())
			require.NoError(t, cmd.Wait())
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}
