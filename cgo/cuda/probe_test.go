//go:build cgo && linux

package cuda_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// The device's own node is tried, not node 0, which need not have memory.
func TestSupportsHostNUMA(t *testing.T) {
	d, fake := onFake(t, fakecuda.Node(3), fakecuda.NUMA(3))
	require.NoError(t, d.Supports(0, driver.FeatureHostNUMA))
	require.Contains(t, fake.Last("cuMemCreate"), "location=3:3")
	fake.Fail("cuMemCreate", 1, 2)
	isOnly(t, d.Supports(0, driver.FeatureHostNUMA), driver.ErrOutOfMemory, "which settles nothing")

	d, _ = onFake(t, fakecuda.Node(3), fakecuda.NUMA(2))
	isOnly(t, d.Supports(0, driver.FeatureHostNUMA), driver.ErrNotSupported, "its node has none")

	nodes := cuda.OnlineNodes("/sys/devices/system/node/online")
	d, _ = onFake(t, fakecuda.NUMA(-2)) // only node 0, and a driver that does not name a device's node
	require.NoError(t, d.Supports(0, driver.FeatureHostNUMA))
	d, fake = onFake(t, fakecuda.Node(77), fakecuda.NUMA(-1))
	before := fake.Calls("cuMemGetAllocationGranularity")
	isOnly(t, d.Supports(0, driver.FeatureHostNUMA), driver.ErrNotSupported, "no node that is online")
	require.Equal(t, len(nodes), fake.Calls("cuMemGetAllocationGranularity")-before, "each was tried")
}

func TestOnlineNodes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "online")
	require.Equal(t, []int{0}, cuda.OnlineNodes(path), "no list")
	for text, want := range map[string][]int{
		"0\n": {0}, "0-1\n": {0, 1}, "1,3-5,8\n": {1, 3, 4, 5, 8}, "\n": {0}, "a-b\n": {0}, "2-\n": {0},
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.Equal(t, want, cuda.OnlineNodes(path), "%q", text)
	}
}

// An IPC handle of plain memory is tried where that needs no new context.
func TestSupportsLegacyIPC(t *testing.T) {
	d, fake := onFake(t)
	require.NoError(t, d.Supports(0, driver.FeatureLegacyIPC))
	require.Zero(t, fake.Calls("cuDevicePrimaryCtxRetain"), "a context was made to ask")
	require.Equal(t, "cuDeviceGetAttribute attribute=41 dev=0", fake.Last("cuDeviceGetAttribute"))
	v, err := d.Open(0)
	require.NoError(t, err)
	before := fake.Live()
	require.NoError(t, d.Supports(0, driver.FeatureLegacyIPC))
	require.Equal(t, 1, fake.Calls("cuIpcGetMemHandle"), "an attribute is no proof")
	fake.Fail("cuIpcGetMemHandle", 1, 801)
	isOnly(t, d.Supports(0, driver.FeatureLegacyIPC), driver.ErrNotSupported)
	for _, symbol := range []string{"cuMemAlloc_v2", "cuIpcGetMemHandle", "cuCtxPushCurrent_v2", "cuDevicePrimaryCtxRetain"} {
		fake.Fail(symbol, 1, 2)
		isOnly(t, d.Supports(0, driver.FeatureLegacyIPC), driver.ErrOutOfMemory, symbol)
	}
	require.Equal(t, before, fake.Live())
	require.NoError(t, v.Close())

	old, _ := onFake(t, fakecuda.Missing("cuIpcGetMemHandle"))
	isOnly(t, old.Supports(0, driver.FeatureLegacyIPC), driver.ErrNotSupported)
}
