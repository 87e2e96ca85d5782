//go:build cgo && linux

package cuda_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/internal/testing/silentfs"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// mapOne maps a granule of device 1 without a context, and returns its address.
func mapOne(t *testing.T, d driver.Driver) driver.Ptr {
	t.Helper()
	p, err := d.Reserve(granule, 0)
	require.NoError(t, err)
	h, err := d.Create(granule, driver.Prop{Location: onDevice(1)})
	require.NoError(t, err)
	require.NoError(t, d.Map(p, granule, h))
	require.NoError(t, d.Release(h))
	t.Cleanup(func() {
		require.NoError(t, d.Unmap(p, granule))
		require.NoError(t, d.Free(p, granule))
	})
	return p
}

// TestExportRangeHasAContext: the context of the memory's device, only for the call.
func TestExportRangeHasAContext(t *testing.T) {
	d, fake := onFake(t)
	p := mapOne(t, d)
	fd, err := d.ExportRange(p, granule, 0)
	require.NoError(t, err)
	require.NoError(t, os.NewFile(uintptr(fd), "dma-buf").Close())
	require.Equal(t, "cuDevicePrimaryCtxRetain dev=1", fake.Last("cuDevicePrimaryCtxRetain"))
	require.Zero(t, fake.Live().Contexts)
}

// TestExportRangeUndoes whatever fails: no context stays, no descriptor is left.
func TestExportRangeUndoes(t *testing.T) {
	d, fake := onFake(t)
	p := mapOne(t, d)
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(all)
	}
	before := descriptors()
	for _, symbol := range []string{
		"cuPointerGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuMemGetHandleForAddressRange",
	} {
		fake.Fail(symbol, 1, 2)
		fd, err := d.ExportRange(p, granule, 0)
		isOnly(t, err, driver.ErrOutOfMemory, symbol)
		require.Equal(t, -1, fd)
		require.Zero(t, fake.Live().Contexts, symbol)
	}
	fake.Fail("cuMemGetHandleForAddressRange", 1, 304)
	_, err := d.ExportRange(p, granule, 0)
	isOnly(t, err, driver.ErrLimit, "no descriptor is left")
	require.Equal(t, before, descriptors())
}

func TestSupportsDMABuf(t *testing.T) {
	d, fake := onFake(t)
	require.NoError(t, d.Supports(0, driver.FeatureDMABuf))
	require.Zero(t, fake.Calls("cuDevicePrimaryCtxRetain"), "a context was made to ask")
	v, err := d.Open(0)
	require.NoError(t, err)
	require.NoError(t, d.Supports(0, driver.FeatureDMABuf))
	require.Equal(t, 1, fake.Calls("cuMemGetHandleForAddressRange"), "an attribute is no proof")
	fake.Fail("cuMemGetHandleForAddressRange", 1, 801)
	isOnly(t, d.Supports(0, driver.FeatureDMABuf), driver.ErrNotSupported)
	fake.Fail("cuMemMap", 1, 2)
	isOnly(t, d.Supports(0, driver.FeatureDMABuf), driver.ErrOutOfMemory, "which settles nothing")
	require.NoError(t, v.Close())

	old, _ := onFake(t, fakecuda.Missing("cuMemGetHandleForAddressRange"))
	isOnly(t, old.Supports(0, driver.FeatureDMABuf), driver.ErrNotSupported)
	_, err = old.ExportRange(mapOne(t, old), granule, 0)
	isOnly(t, err, driver.ErrNotSupported)
}

// TestDMABufFlags: the driver is asked only for what its version knows.
func TestDMABufFlags(t *testing.T) {
	d, fake := onFake(t, fakecuda.Version(12080))
	p := mapOne(t, d)
	fd, err := d.ExportRange(p, granule, driver.DMABufPCIe)
	require.NoError(t, err)
	require.NoError(t, os.NewFile(uintptr(fd), "dma-buf").Close())
	require.Regexp(t, " flags=1$", fake.Last("cuMemGetHandleForAddressRange"))
	_, err = d.ExportRange(p, granule, 2*driver.DMABufPCIe)
	isOnly(t, err, driver.ErrNotSupported)
	fake.Fail("cuDriverGetVersion", 1, 2)
	_, err = d.ExportRange(p, granule, driver.DMABufPCIe)
	isOnly(t, err, driver.ErrOutOfMemory)
	require.Equal(t, 1, fake.Calls("cuMemGetHandleForAddressRange"))

	old, fake := onFake(t, fakecuda.Version(12070))
	_, err = old.ExportRange(mapOne(t, old), granule, driver.DMABufPCIe)
	isOnly(t, err, driver.ErrNotSupported)
	require.Zero(t, fake.Calls("cuMemGetHandleForAddressRange"))
}

// TestNoFabric: the errors of a machine that is in no NVLink fabric.
func TestNoFabric(t *testing.T) {
	d, _ := onFake(t)
	prop := driver.Prop{Location: onDevice(0), Share: driver.ShareFabric}
	_, err := d.Create(granule, prop)
	isOnly(t, err, driver.ErrPermission)
	require.ErrorContains(t, err, "fabric handle: CUDA_ERROR_NOT_PERMITTED")
	require.ErrorContains(t, err, "IMEX")
	isOnly(t, d.Supports(0, driver.FeatureShareFabric), driver.ErrNotSupported)
	_, err = d.ImportFabric([64]byte{}, granule, prop)
	isOnly(t, err, driver.ErrNotSupported)
	require.ErrorContains(t, err, "fabric handle")
}

func TestFabricArguments(t *testing.T) {
	d, fake := onFake(t, fakecuda.Fabric())
	require.NoError(t, d.Supports(0, driver.FeatureShareFabric))
	prop := driver.Prop{Location: onDevice(0), Share: driver.ShareFabric}
	h, err := d.Create(granule, prop)
	require.NoError(t, err)
	name, err := d.ExportFabric(h)
	require.NoError(t, err)
	require.Regexp(t, " type=8 flags=0$", fake.Last("cuMemExportToShareableHandle"))
	require.Equal(t, byte(0xfa), name[63])
	imported, err := d.ImportFabric(name, granule, prop)
	require.NoError(t, err)
	require.Regexp(t, " type=8$", fake.Last("cuMemImportFromShareableHandle"))
	_, err = d.ExportFabric(imported)
	isOnly(t, err, driver.ErrInvalid)
	fake.Fail("cuMemExportToShareableHandle", 1, 2)
	_, err = d.ExportFabric(h)
	isOnly(t, err, driver.ErrOutOfMemory)
	fake.Fail("cuMemCreate", 1, 2)
	_, err = d.Create(granule, prop)
	isOnly(t, err, driver.ErrOutOfMemory)
	require.NotContains(t, err.Error(), "fabric", "any memory may run out")
	v, err := d.Open(0)
	require.NoError(t, err)
	fake.Lose()
	isOnly(t, v.Sync(), driver.ErrDeviceLost)
	_, err = d.ExportFabric(h)
	isOnly(t, err, driver.ErrDeviceLost)
	require.NoError(t, d.Release(h))
	require.NoError(t, d.Release(imported))
	require.NoError(t, v.Close())
}

// TestExportDMABufOfAGrowingRange: package vmm on the binding exports the memory that
// the range has, and growth does not change the export.
func TestExportDMABufOfAGrowingRange(t *testing.T) {
	d, fake := onFake(t)
	dev, err := vmm.OpenDriver(d, 0)
	require.NoError(t, err)
	g, err := dev.NewRange(vmm.RangeOptions{Max: 16 * granule, Chunk: granule, RDMA: true})
	require.NoError(t, err)
	require.NoError(t, g.Grow(3*granule))
	fd, err := g.ExportDMABuf(granule/2, 2*granule)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "dma-buf")
	info, err := f.Stat()
	require.NoError(t, err)
	require.EqualValues(t, 2*granule, info.Size())
	before := g.Generation()
	require.NoError(t, g.Grow(5*granule))
	require.Equal(t, before, g.Generation(), "the registration is still right")
	_, err = g.ExportDMABuf(1, 4096)
	require.ErrorIs(t, err, vmm.ErrInvalid, "no whole pages")
	require.NoError(t, g.Close())
	require.NoError(t, f.Close())
	require.NoError(t, dev.Close())
	require.Zero(t, fake.Live().Contexts)
}

// TestImportAsksNoDaemon: to refuse a file of a FUSE mount, nothing is asked of its
// daemon, which may have stopped replying. CUDA, which could ask, does not see it.
func TestImportAsksNoDaemon(t *testing.T) {
	d, fake := onFake(t)
	fd, end := silentfs.File(t, false)
	imported := make(chan error, 1)
	go func() {
		_, err := d.Import(fd, granule, driver.Prop{Location: onDevice(0), Share: driver.ShareFD})
		imported <- err
	}()
	select {
	case err := <-imported:
		isOnly(t, err, driver.ErrInvalid)
		require.ErrorContains(t, err, "not of a character device")
	case <-time.After(10 * time.Second):
		end()
		t.Fatalf("Import waits for the daemon; without it: %v", <-imported)
	}
	require.Zero(t, fake.Calls("cuMemImportFromShareableHandle"))
}

func TestContextActive(t *testing.T) {
	d, fake := onFake(t)
	active, err := d.ContextActive(0)
	require.NoError(t, err)
	require.False(t, active)
	require.Zero(t, fake.Calls("cuDevicePrimaryCtxRetain"), "a context was made to ask")
	v, err := d.Open(0)
	require.NoError(t, err)
	active, err = d.ContextActive(0)
	require.NoError(t, err)
	require.True(t, active)
	require.NoError(t, v.Close())
	active, err = d.ContextActive(0)
	require.NoError(t, err)
	require.False(t, active)
	_, err = d.ContextActive(99)
	isOnly(t, err, driver.ErrNoDevice)
	fake.Fail("cuDevicePrimaryCtxGetState", 1, 2)
	_, err = d.ContextActive(0)
	isOnly(t, err, driver.ErrOutOfMemory)
}
