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

// Files:
//
//	suite.go             Rules: each with the source of its promise; running them; their table
//	check.go             check: what a case calls to test the driver; how long a call may take
//	held.go              held: what a case has taken, and gives back at its end
//	child.go             cases that run in a process of their own: its arguments and time limit
//	peerprocess.go       the other process of a case with two
//	inject.go            Inject: a driver whose calls fail as the test says; Injected
//	inject_gen.go        its methods, written by internal/injectgen
//	count.go             counting calls: Counts, Balanced
//	kernels.go           the kernels of the cases, as PTX
//	kernels_unsafe.go    the same as Go functions
//	gate_unsafe.go       a word that holds a stream back until the case lets it go
//	rules_driver.go      devices, what they support, granularity
//	rules_create.go      creating and releasing memory
//	rules_address.go     reserving addresses
//	rules_map.go         mapping and unmapping
//	rules_access.go      access
//	rules_peer.go        access of other devices
//	rules_peers.go       pairs of devices; legacy access to plain memory
//	rules_copy.go        copies and fills
//	rules_copy2d.go      copies of rows with a pitch
//	rules_order.go       unmapping and releasing under work
//	rules_stream.go      streams
//	rules_default.go     the default streams
//	rules_event.go       events
//	rules_capture.go     captures
//	rules_graph.go       graphs
//	rules_launch.go      modules and launches
//	rules_optional.go    host addresses, plain and pinned memory, waits for values
//	rules_share.go       exporting and importing memory
//	rules_export.go      dma-buf and fabric handles
//	rules_legacyipc.go   handles of plain memory and of events
//	rules_pool.go        the driver's pools
//	rules_poolorder.go   the order of pools and streams
//	rules_poolstate.go   attributes, limits and access of pools
//	rules_poolsharer.go  pools in other processes
//	rules_lost.go        lost devices
//	rules_reset.go       contexts that another library resets
