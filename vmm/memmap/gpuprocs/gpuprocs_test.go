//go:build cgo && linux && !nonvml

package gpuprocs

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/fakenvml"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memmap"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

func fake(t *testing.T, missing ...string) *Processes {
	t.Helper()
	p, err := open(nvml.New(nvml.WithLibraryPath(fakenvml.Build(t, missing...))))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// TestProcesses: the processes of a GPU and of an instance, found by UUID or by PCI address; one
// whose memory NVML does not know is left out.
func TestProcesses(t *testing.T) {
	p := fake(t)
	two := []memmap.Process{{PID: 4000000001, Bytes: 1 << 20}, {PID: 4000000002, Bytes: 2 << 20}}
	require.Equal(t, two, p.of("GPU-0", "", false))
	require.Equal(t, two, p.of("GPU-none", "0000:20:00.0", false))
	require.Equal(t, two[:1], p.of("MIG-0", "", true))
	require.Empty(t, p.of("MIG-none", "0000:30:00.0", true), "of an instance its GPU's are not")
	require.Empty(t, p.of("GPU-none", "", false))
	require.Empty(t, p.Of(vmmtest.Device(t)), "memory of the host")
}

// TestFree: the free memory of a GPU and of an instance.
func TestFree(t *testing.T) {
	p := fake(t)
	for _, uuid := range []string{"GPU-0", "MIG-0"} {
		free, err := p.free(uuid, "", uuid == "MIG-0")
		require.NoError(t, err)
		require.Equal(t, uint64(70<<30), free)
	}
	_, err := p.free("MIG-none", "0000:30:00.0", true)
	require.ErrorIs(t, err, vmm.ErrNotSupported)
	_, err = p.Free(vmmtest.Device(t))
	require.ErrorIs(t, err, vmm.ErrNotSupported)
	_, err = fake(t, "nvmlDeviceGetMemoryInfo").free("GPU-0", "", false)
	require.ErrorIs(t, err, vmm.ErrNotSupported)
}

// TestWithout: a driver that lacks the function, and none.
func TestWithout(t *testing.T) {
	require.Empty(t, fake(t, "nvmlDeviceGetComputeRunningProcesses_v3").of("GPU-0", "", false))
	_, err := open(nvml.New(nvml.WithLibraryPath("/no/libnvidia-ml.so.1")))
	require.ErrorIs(t, err, vmm.ErrNotSupported)
	require.ErrorContains(t, err, "libnvidia-ml.so.1")
}

func TestUUID(t *testing.T) {
	info := vmm.Info{UUID: [16]byte{0x5a, 0x01, 0xff, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}
	require.Equal(t, "GPU-5a01ff03-0405-0607-0809-0a0b0c0d0e0f", uuidOf(info))
	info.MIG = "MIG-x"
	require.Equal(t, "MIG-x", uuidOf(info))
}
