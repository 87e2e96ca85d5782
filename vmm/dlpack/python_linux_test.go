//go:build cgo

package dlpack_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// TestNumPyFollowsATable that grows in its own process: each prefix is at the same address, and the table closes once
// Python has dropped them.
func TestNumPyFollowsATable(t *testing.T) {
	testgate.Long(t)
	if out, err := exec.Command("python3", "-c", "import numpy").CombinedOutput(); err != nil {
		t.Skipf("needs python3 with NumPy: %v\n%s", err, out)
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs Go")
	}
	library := filepath.Join(t.TempDir(), "table.so")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-buildmode=c-shared", "-o", library, "./testdata/shared").CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.CommandContext(t.Context(), "python3", "testdata/follow.py", library, "host:0", "numpy").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "followed 341000 rows")
}
