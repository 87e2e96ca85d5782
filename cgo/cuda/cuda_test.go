package cuda_test

import (
	"errors"
	"testing"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// device is the machine's CUDA driver; the test skips where there is none.
func device(tb testing.TB) driver.Driver {
	tb.Helper()
	d, err := cuda.Default()
	if err != nil && !errors.Is(err, driver.ErrNoDriver) && !errors.Is(err, driver.ErrNoDevice) {
		tb.Fatalf("a CUDA driver is there and fails: %v", err)
	}
	testgate.Require(tb, "cuda", err)
	return d
}

func TestConformance(t *testing.T) {
	device(t)
	t.Run("Memory", func(t *testing.T) {
		t.Log("\n" + drivertest.Table(drivertest.Memory(t, device)))
	})
	t.Run("Async", func(t *testing.T) {
		t.Log("\n" + drivertest.Table(drivertest.Async(t, func(tb testing.TB) driver.Driver { return withReset(device(tb)) })))
	})
}
