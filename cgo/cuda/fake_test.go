//go:build cgo && linux

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakelib"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

const granule = 2 << 20 // of the fake driver

// fakeCode is code for the fake driver: see internal/testing/fakecuda/lib/module.c.
const fakeCode = "// params fill_bytes 8 8 4\n.entry fill_bytes(\n.entry empty(\n"

// onFake is the binding on a fake driver of its own. The test must violate no rule of
// it and free everything.
func onFake(tb testing.TB, changes ...fakelib.Change) (*cuda.Driver, *fakecuda.Library) {
	tb.Helper()
	path := fakecuda.Build(tb, changes...)
	fake := fakecuda.Open(tb, path)
	d, err := cuda.Loaded(path)
	require.NoError(tb, err)
	tb.Cleanup(fake.Clean)
	return d, fake
}

// opened is onFake with device 0 open until the test ends.
func opened(tb testing.TB) (*cuda.Driver, *cuda.Device, *fakecuda.Library) {
	tb.Helper()
	d, fake := onFake(tb)
	v, err := d.Open(0)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, v.Close()) })
	return d, v.(*cuda.Device), fake
}

func onDevice(n int) driver.Location { return driver.Location{Kind: driver.LocationDevice, ID: n} }

// Work of the fake driver is done when the call that queues it returns, and the driver
// loses no device by itself, and it knows no real other process. So the rules that hold
// work back, or share with one, are for the host driver and the card; without the symbols
// of the value waits and of sharing they are skipped and say why. Of the three devices two
// have no path to each other.
func TestConformanceOnFake(t *testing.T) {
	t.Run("Memory", func(t *testing.T) {
		drivertest.Memory(t, func(tb testing.TB) driver.Driver {
			path := fakecuda.Build(tb, fakecuda.Fabric())
			fake := fakecuda.Open(tb, path)
			fake.Configure(3, gib)
			fake.Link(1, 2, fakecuda.NoPath)
			fake.Link(2, 1, fakecuda.NoPath)
			d, err := cuda.Loaded(path)
			require.NoError(tb, err)
			tb.Cleanup(fake.Clean)
			return d
		})
	})
	t.Run("Async", func(t *testing.T) {
		drivertest.Async(t, func(tb testing.TB) driver.Driver {
			path := fakecuda.Build(tb, fakecuda.Missing("cuStreamWaitValue32_v2", "cuIpcOpenMemHandle_v2", "cuMemPoolExportToShareableHandle"))
			fake := fakecuda.Open(tb, path)
			d, err := cuda.Loaded(path)
			require.NoError(tb, err)
			tb.Cleanup(fake.Clean)
			return resettable{d, path}
		})
	})
}
