package drivertest_test

import (
	"testing"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

func openHost(testing.TB) driver.Driver {
	return host.New(host.Config{Devices: 2, Memory: 1 << 30})
}

func TestConformance(t *testing.T) {
	t.Run("Memory", func(t *testing.T) { drivertest.Memory(t, openHost) })
	t.Run("Async", func(t *testing.T) { drivertest.Async(t, openHost) })
}
