// Package vmmtest gives tests of applications a device to run on. It needs no
// GPU, and it fails the test that leaves something open:
//
//	dev := vmmtest.Device(t)
//
// With a hook it is also a device on which a chosen call fails:
//
//	dev := vmmtest.Device(t, drivertest.FailNth("Create", 3, vmm.ErrOutOfMemory))
//
// Host memory is a device on Linux only. Elsewhere the test is skipped and says so, or
// fails where the environment variable VMM_TEST_REQUIRE lists host.
package vmmtest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// Device opens a device of a host driver of the test's own. Each hook sees
// every driver call before it is made and can refuse it. The device is closed
// when the test ends; what is still open then, or was not given back to the
// driver, fails the test.
func Device(tb testing.TB, hooks ...func(drivertest.Call) error) *vmm.Device {
	tb.Helper()
	return Devices(tb, 1, hooks...)[0]
}

// Devices is Device for n devices of one host driver, each of which can be
// granted the memory of the others.
func Devices(tb testing.TB, n int, hooks ...func(drivertest.Call) error) []*vmm.Device {
	tb.Helper()
	return open(tb, onHost(tb, host.New(host.Config{Devices: n})), n, hooks)
}

// Driver is a driver that a test can run on.
type Driver struct {
	Name string // "host", "cuda"
	find func(testing.TB) driver.Driver
}

// Drivers are those that tests of behaviour should run on, for a table: the
// host's and CUDA's. Each skips the test where there is none, or fails it where the
// environment variable VMM_TEST_REQUIRE lists its name.
func Drivers() []Driver {
	return []Driver{
		{"host", func(tb testing.TB) driver.Driver {
			tb.Helper()
			return onHost(tb, host.New(host.Config{Devices: 2}))
		}},
		{"cuda", findCUDA},
	}
}

// onHost returns drv, or skips the test where the system is not one for it.
func onHost(tb testing.TB, drv driver.Driver) driver.Driver {
	tb.Helper()
	_, err := drv.Devices()
	testgate.Require(tb, "host", err)
	return drv
}

// Devices opens devices 0 to n-1 of the driver, as the function Devices does.
// Where the driver has fewer, or they cannot reach each other's memory, the
// test is skipped, or fails if VMM_TEST_REQUIRE lists p2p.
func (d Driver) Devices(tb testing.TB, n int, hooks ...func(drivertest.Call) error) []*vmm.Device {
	tb.Helper()
	drv := d.find(tb)
	testgate.Require(tb, "p2p", peers(drv, n))
	return open(tb, drv, n, hooks)
}

// Device opens device 0 of the driver, as the function Device does.
func (d Driver) Device(tb testing.TB, hooks ...func(drivertest.Call) error) *vmm.Device {
	tb.Helper()
	return d.Devices(tb, 1, hooks...)[0]
}

func findCUDA(tb testing.TB) driver.Driver {
	tb.Helper()
	dev, err := vmm.Open("cuda:0")
	if err != nil && !errors.Is(err, vmm.ErrNoDriver) && !errors.Is(err, vmm.ErrNoDevice) {
		tb.Fatalf("a CUDA driver is there and fails: %v", err)
	}
	testgate.Require(tb, "cuda", err)
	drv := dev.Driver()
	if err := dev.Close(); err != nil {
		tb.Fatal(err)
	}
	return drv
}

// peers says why there are no n devices that reach each other, or nil.
func peers(drv driver.Driver, n int) error {
	all, err := drv.Devices()
	if err != nil {
		return err
	}
	if len(all) < n {
		return fmt.Errorf("%d devices of driver %s wanted, %d here", n, drv.Name(), len(all))
	}
	for from := range n {
		for to := range n {
			if from == to {
				continue
			}
			can, err := drv.CanAccessPeer(from, to)
			if err != nil {
				return err
			}
			if !can {
				return fmt.Errorf("%s:%d cannot reach the memory of %s:%d", drv.Name(), from, drv.Name(), to)
			}
		}
	}
	return nil
}

// open opens devices 0 to n-1 through one counting wrapper.
func open(tb testing.TB, drv driver.Driver, n int, hooks []func(drivertest.Call) error) []*vmm.Device {
	tb.Helper()
	if n < 1 {
		tb.Fatalf("%d devices asked for", n)
	}
	counted := drivertest.Inject(drv, all(hooks))
	devs := make([]*vmm.Device, n)
	tb.Cleanup(func() {
		tb.Helper()
		closed := true
		for _, dev := range devs {
			if err := dev.Close(); err != nil {
				closed = false
				tb.Errorf("at the end of the test: %v", err)
			}
		}
		if err := counted.Balanced(); closed && err != nil {
			tb.Errorf("at the end of the test: %v", err)
		}
	})
	for i := range devs {
		dev, err := vmm.OpenDriver(counted, i)
		if err != nil {
			tb.Fatal(err)
		}
		devs[i] = dev
	}
	return devs
}

// all calls every hook, so that each of them counts every call, and returns the
// first error.
func all(hooks []func(drivertest.Call) error) func(drivertest.Call) error {
	return func(c drivertest.Call) error {
		var first error
		for _, hook := range hooks {
			if err := hook(c); first == nil {
				first = err
			}
		}
		return first
	}
}
