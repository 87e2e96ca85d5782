package drivertest_test

import (
	"testing"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// The test of a driver: every rule is a subtest.
func ExampleMemory() {
	t := &testing.T{} // that of the test function

	results := drivertest.Memory(t, func(testing.TB) driver.Driver { return host.New(host.Config{}) })
	t.Log(drivertest.Table(results))
}
