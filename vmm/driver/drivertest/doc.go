// Package drivertest holds a driver to the seam that package driver
// describes, and makes one fail on purpose.
//
// [Memory] and [Async] are the conformance suites. Every [Rule] is one subtest
// with one sentence and its source; after a run the table rule by outcome is
// in the test's log. A driver's own test needs only
//
//	func TestConformance(t *testing.T) {
//		open := func(testing.TB) driver.Driver { return host.New(host.Config{Devices: 2}) }
//		t.Run("Memory", func(t *testing.T) { drivertest.Memory(t, open) })
//		t.Run("Async", func(t *testing.T) { drivertest.Async(t, open) })
//	}
//
// Memory needs what every driver has: addresses, physical memory, and a
// device's copies to look at bytes. Async needs streams that run later and a
// device that can be lost. A rule about a lost device runs in a child process,
// because on a GPU the loss lasts as long as the process does.
//
// [Inject] wraps any driver. A hook sees each call before it is made and can
// refuse it, and the wrapper counts what went through, so that a test can say
// that everything taken was given back:
//
//	d := drivertest.Inject(host.New(host.Config{}), drivertest.FailNth("Map", 3, driver.ErrOutOfMemory))
package drivertest
