//go:build cgo && linux && !nonvml

package nvmlcalls

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/fakenvml"
)

// TestFindReturnsBothErrors: if neither the UUID nor the PCI address finds a GPU, the caller sees why
// each did not.
func TestFindReturnsBothErrors(t *testing.T) {
	l, err := Open(nvml.New(nvml.WithLibraryPath(fakenvml.Build(t))))
	require.NoError(t, err)
	t.Cleanup(l.Close)
	t.Setenv("FAKE_NVML_FAIL", "nvmlDeviceGetHandleByPciBusId_v2")
	for _, mig := range []bool{false, true} {
		_, err = l.Find("GPU-none", "0000:20:00.0", mig)
		require.ErrorIs(t, err, nvml.ERROR_NOT_FOUND)
		require.ErrorIs(t, err, nvml.ERROR_NOT_SUPPORTED)
		require.ErrorContains(t, err, "0000:20:00.0: Not Supported")
	}
	_, err = l.Find("GPU-none", "", false)
	require.ErrorIs(t, err, nvml.ERROR_NOT_FOUND)
	require.NotErrorIs(t, err, nvml.ERROR_NOT_SUPPORTED)
}
