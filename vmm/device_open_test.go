package vmm_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// TestAutoWithoutItsDriver: if this program cannot use the GPU, it must not silently use
// host memory.
func TestAutoWithoutItsDriver(t *testing.T) {
	d, err := vmm.Open("cuda:0")
	if err == nil {
		require.NoError(t, d.Close())
		t.Skip("there is a CUDA driver, which \"auto\" takes")
	}
	require.ErrorIs(t, err, vmm.ErrNoDriver)

	file := filepath.Join(t.TempDir(), "nvidiactl")
	vmm.SetNVIDIADevice(t, file)
	d, err = vmm.Open("auto")
	require.NoError(t, err, "there is no NVIDIA device either")
	require.Equal(t, "host", d.Driver().Name())
	require.NoError(t, d.Close())

	require.NoError(t, os.WriteFile(file, nil, 0o600))
	d, err = vmm.Open("auto")
	require.ErrorIs(t, err, vmm.ErrNoDriver)
	require.Nil(t, d)
	require.ErrorContains(t, err, "CGO_ENABLED=1")
	require.ErrorContains(t, err, "C compiler")
	require.ErrorContains(t, err, `Open("host")`)

	d, err = vmm.Open("host")
	require.NoError(t, err)
	require.NoError(t, d.Close())
}
