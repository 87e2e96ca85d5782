//go:build cgo

package dlpack_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// pythons are the first in PATH, and Debian's, which has Debian's NumPy.
var pythons = []string{"python3", "/usr/bin/python3"}

// TestNumPyFollowsATable that grows in its own process: each prefix is at the same address, and the table closes once
// Python has dropped them.
func TestNumPyFollowsATable(t *testing.T) {
	testgate.Long(t)
	python := slices.IndexFunc(pythons, func(p string) bool { return exec.CommandContext(t.Context(), p, "-c", "import numpy").Run() == nil })
	if python < 0 {
		t.Skipf("needs NumPy for one of %v", pythons)
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs Go")
	}
	library := filepath.Join(t.TempDir(), "table.so")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-buildmode=c-shared", "-o", library, "./testdata/shared").CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.CommandContext(t.Context(), pythons[python], "testdata/follow.py", library, "host:0", "numpy").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "followed 341000 rows")
}
