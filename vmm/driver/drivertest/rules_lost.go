package drivertest

import (
	"maps"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// The library's fences are there to prevent a lost device. These rules show that each
// fence is needed, and what still works when one was missing.
func lostRules() []Rule {
	rules := []Rule{
		{Name: "lost-unmap", Says: "unmap waits for nothing: if work is still queued on the memory, the device is lost", Source: measured, run: lostUnmap},
		{Name: "lost-entry", Says: "every call that names a lost device returns ErrDeviceLost at once", Source: contract(7), run: onDevice(lostEntry)},
		{Name: "lost-process", Says: "one lost device is a lost process: every device is lost, also one that was not involved", Source: measured, devices: 2, run: lostProcess},
		{Name: "lost-give-back", Says: "memory of a lost device can still be freed", Source: measured, run: onDevice(lostGiveBack)},
		{Name: "lost-narrow", Says: "if access that queued work uses is taken away, the device is lost", Source: contract(4), run: lostNarrow},
		{Name: "lost-read-only", Says: "if memory becomes read-only under a queued write, the device is lost", Source: contract(4), needs: []driver.Feature{driver.FeatureReadOnlyMap}, run: lostReadOnly},
		{Name: "lost-peer-unmap", Says: "a wait for the owner alone is not enough: unmap under a peer's work loses both", Source: measured, devices: 2, run: lostPeerUnmap},
		{Name: "lost-peer-disable", Says: "in a lost process access to plain memory can be disabled and not enabled", Source: contract(7), devices: 2, run: lostPeerDisable},
		{Name: "lost-kernel", Says: "a kernel that writes where nothing is mapped loses every device of the process; its module can still be unloaded", Source: manual, needs: []driver.Feature{driver.FeatureKernels}, run: onDevice(lostKernel)},
		{Name: "lost-kernel-unmap", Says: "if memory is unmapped under a queued kernel that uses it, the device is lost", Source: contract(4), needs: []driver.Feature{driver.FeatureKernels}, run: onStream(2, lostKernelUnmap)},
		{Name: "lost-graph", Says: "a launch of a graph whose memory is not mapped any more is no error, and loses the device", Source: manual, run: lostGraph},
		{Name: "lost-peer-narrow", Says: "revoking a peer under its queued work loses both", Source: contract(4), devices: 2, run: lostPeerNarrow},
	}
	for i := range rules {
		rules[i].lost = true
	}
	return needing(rules, driver.FeatureStreamMemOps)
}

// lose queues a fill after a gate, unmaps or narrows the memory with f, opens the
// gate, and checks that the device is lost.
func (c *check) lose(d driver.Device, p driver.Ptr, f func()) driver.Stream {
	c.Helper()
	s := c.stream(d)
	g := c.hold(d, s)
	c.fillAll(d, p, 1, s)
	f()
	g.open()
	err := c.returns("sync the stream", func() error { return d.SyncStream(s) })
	c.want(err, "sync the stream whose memory is gone", driver.ErrDeviceLost)
	c.want(c.returns("sync", d.Sync), "sync the device afterwards", driver.ErrDeviceLost)
	return s
}

func lostUnmap(c *check) {
	p, _ := c.chunks(1)
	c.lose(c.dev(0), p, func() { c.unmap(p, c.gran) })
}

func lostEntry(c *check, d driver.Device) {
	p, hs := c.chunks(2)
	// Made before the loss, because afterwards no call can make them.
	q := c.reserve(c.gran)
	f := -1
	if c.d.Supports(0, driver.FeatureShareFD) == nil {
		f = int(c.export(c.createAs(c.gran, shared())).Fd())
	}
	e := c.event(d, 0)
	hasRows := c.d.Supports(0, driver.FeatureCopy2D) == nil
	var kernel driver.Function
	hasKernels := c.d.Supports(0, driver.FeatureKernels) == nil
	if hasKernels {
		kernel = c.kernel(d, addWords)
	}
	s := c.lose(d, p, func() { c.unmap(p, c.gran) })
	calls := deviceCalls(d, c.chunk(p, 1), s, e)
	if hasRows {
		maps.Copy(calls, rowCalls(as[driver.Copier2D](c, d), c.chunk(p, 1), s))
	}
	if hasKernels {
		maps.Copy(calls, launchCalls(c, d, kernel, c.chunk(p, 1), s))
	}
	maps.Copy(calls, map[string]func() error{
		"AllocHost":     func() error { _, _, err := as[driver.HostAllocator](c, d).AllocHost(4096); return err },
		"WaitValue":     func() error { return as[driver.StreamMemOps](c, d).WaitValue(s, c.chunk(p, 1), 0, 4) },
		"WriteValue":    func() error { return as[driver.StreamMemOps](c, d).WriteValue(s, c.chunk(p, 1), 0, 4) },
		"Open":          func() error { return errOf(c.d.Open(0)) },
		"SyncIfActive":  func() error { return c.d.SyncIfActive(0) },
		"Supports":      func() error { return c.d.Supports(0, driver.FeatureVMM) },
		"Granularity":   func() error { return errOf(c.d.Granularity(private(0))) },
		"CanAccessPeer": func() error { return errOf(c.d.CanAccessPeer(0, 0)) },
		"Access":        func() error { return errOf(c.d.Access(c.chunk(p, 1), at(0))) },
		"Create":        func() error { return errOf(c.d.Create(c.gran, private(0))) },
		"SetAccess": func() error {
			return c.d.SetAccess(c.chunk(p, 1), c.gran, []driver.Grant{grant(0, driver.AccessReadWrite)})
		},
	})
	if f >= 0 {
		calls["Import"] = func() error { return errOf(c.d.Import(f, c.gran, shared())) }
	}
	c.refuses(calls, "on a lost device", driver.ErrDeviceLost)
	// What frees something still works.
	c.unmap(c.chunk(p, 1), c.gran)
	c.release(hs...)
	c.free(p)
	c.free(q)
}

func lostProcess(c *check) {
	p, _ := c.chunks(1)
	other := c.dev(1)
	s, e := c.stream(other), c.event(other, 0)
	q, h := c.chunkOn(1)
	c.lose(c.dev(0), p, func() { c.unmap(p, c.gran) })
	calls := deviceCalls(other, q, s, e)
	maps.Copy(calls, map[string]func() error{
		"Open":         func() error { return errOf(c.d.Open(1)) },
		"SyncIfActive": func() error { return c.d.SyncIfActive(1) },
		"Create":       func() error { return errOf(c.d.Create(c.gran, private(1))) },
	})
	c.refuses(calls, "on the other device", driver.ErrDeviceLost)
	c.unmap(q, c.gran)
	c.release(h)
	c.free(q)
}

func lostGiveBack(c *check, d driver.Device) {
	p, hs := c.chunks(4)
	s := c.lose(d, p, func() { c.unmap(p, c.gran) })
	// In the order in which a program frees it, and each call only once.
	c.access(c.chunk(p, 1), c.gran, grant(0, driver.AccessNone))
	c.unmap(c.chunk(p, 1), 3*c.gran)
	c.release(hs...)
	c.free(p)
	for _, what := range []struct {
		doing string
		err   error
	}{
		{"unmap again", c.d.Unmap(p, c.gran)}, {"release again", c.d.Release(hs[0])}, {"free again", c.d.Free(p, 4*c.gran)},
	} {
		c.want(what.err, what.doing, driver.ErrInvalid)
	}
	c.must(d.FreeStream(s), "free the stream")
	c.held.streams = nil
	c.must(d.Close(), "close the device")
	c.must(d.Close(), "close it again")
	delete(c.held.devices, 0)
	c.want(errOf(c.d.Open(0)), "open it again", driver.ErrDeviceLost)
}

func lostKernel(c *check, d driver.Device) {
	f := c.kernel(d, storeOne)
	p := c.reserve(c.gran)
	s := c.stream(d)
	// Opened before, because afterwards no device can be.
	for n := range c.info {
		c.dev(n)
	}
	c.launch(d, f, storeLaunch(p, 1), s)
	err := c.returns("sync the stream", func() error { return d.SyncStream(s) })
	c.want(err, "sync the stream whose kernel faulted", driver.ErrDeviceLost)
	for n := range c.info {
		c.want(c.returns("sync", c.dev(n).Sync), "sync a device afterwards", driver.ErrDeviceLost)
	}
	c.want(errOf(c.d.Create(c.gran, private(0))), "create memory", driver.ErrDeviceLost)
	c.must(as[driver.Launcher](c, d).UnloadModule(c.held.modules[0].it), "unload the module")
}

func lostKernelUnmap(c *check, d driver.Device, s driver.Stream, p driver.Ptr) {
	f := c.kernel(d, addWords)
	g := c.hold(d, s)
	l := addLaunch(p, uint32(2*c.gran/4), 1)
	l.Memory[0].Size = 0
	c.launch(d, f, l, s)
	c.unmap(c.chunk(p, 1), c.gran)
	g.open()
	err := c.returns("sync the stream", func() error { return d.SyncStream(s) })
	c.want(err, "sync the stream whose memory is gone", driver.ErrDeviceLost)
}

func lostGraph(c *check) {
	p, _ := c.chunks(1)
	d := c.dev(0)
	s, run := c.capture(d, driver.CaptureRelaxed), c.stream(d)
	c.fillAll(d, p, 1, s)
	x := c.exec(d, s)
	c.launchGraph(d, x, run)
	c.sync(d, run)
	c.reads(d, p, c.gran, 1)
	c.unmap(p, c.gran)
	c.launchGraph(d, x, run)
	err := c.returns("sync the stream", func() error { return d.SyncStream(run) })
	c.want(err, "sync the stream whose graph's memory is gone", driver.ErrDeviceLost)
}

func lostNarrow(c *check) {
	p, _ := c.chunks(1)
	c.lose(c.dev(0), p, func() { c.access(p, c.gran, grant(0, driver.AccessNone)) })
}

func lostReadOnly(c *check) {
	p, _ := c.chunks(1)
	c.lose(c.dev(0), p, func() { c.access(p, c.gran, grant(0, driver.AccessRead)) })
}

func lostPeerUnmap(c *check) {
	p, _ := c.chunks(1)
	c.access(p, c.gran, grant(1, driver.AccessReadWrite))
	c.lose(c.dev(1), p, func() {
		c.must(c.returns("sync", c.dev(0).Sync), "wait for the owner alone")
		c.unmap(p, c.gran)
	})
	c.want(c.returns("sync the owner", c.dev(0).Sync), "sync the owner", driver.ErrDeviceLost)
}

func lostPeerNarrow(c *check) {
	owner := c.dev(0)
	p, _ := c.chunks(1)
	c.access(p, c.gran, grant(1, driver.AccessReadWrite))
	c.lose(c.dev(1), p, func() { c.access(p, c.gran, grant(1, driver.AccessNone)) })
	c.want(c.returns("sync the owner", owner.Sync), "sync the owner", driver.ErrDeviceLost)
}
