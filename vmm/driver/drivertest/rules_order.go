package drivertest

import "github.com/cuvmm/cuvmm/vmm/driver"

func orderRules() []Rule {
	gated := []driver.Feature{driver.FeatureStreamMemOps}
	return []Rule{
		{Name: "unmap-after-sync", Says: "unmapping after a wait for the work does no harm", Source: contract(4), run: onDevice(unmapAfterSync)},
		{Name: "unmap-after-event", Says: "waiting for the streams that use the memory is enough", Source: contract(4), needs: gated, run: onDevice(unmapAfterEvent)},
		{Name: "unmap-beside", Says: "mapping, unmapping and releasing other chunks during work does no harm and waits for nothing", Source: measured, needs: gated, run: onDevice(unmapBeside)},
		{Name: "unmap-alias", Says: "unmapping one address of a handle harms no work at its other address", Source: guide, needs: gated, run: onDevice(unmapAlias)},
		{Name: "release-under-work", Says: "releasing a mapped handle harms no work", Source: guide, needs: gated, run: onDevice(releaseUnderWork)},
		{Name: "widen-under-work", Says: "granting access, or taking away access that the work does not use, does the work no harm", Source: contract(4), devices: 2, needs: gated, run: onStream(1, widenUnderWork)},
	}
}

func unmapAfterSync(c *check, d driver.Device) {
	s := c.stream(d)
	for range 10 {
		p, _ := c.chunks(2)
		c.fillAll(d, p, 1, s)
		c.copyAll(d, c.chunk(p, 1), p, s)
		c.must(d.Sync(), "sync")
		c.unmap(p, 2*c.gran)
		c.must(d.Sync(), "sync afterwards")
	}
}

func unmapAfterEvent(c *check, d driver.Device) {
	busy, s := c.stream(d), c.stream(d)
	e := c.event(d, driver.EventBlocking)
	g := c.hold(d, busy)
	p, _ := c.chunks(1)
	c.fillAll(d, p, 1, s)
	c.record(d, e, s)
	c.must(c.returns("sync the event", func() error { return d.SyncEvent(e) }), "sync the event")
	c.unmap(p, c.gran)
	g.open()
	c.must(c.returns("sync", d.Sync), "sync afterwards")
}

func unmapBeside(c *check, d driver.Device) {
	s := c.stream(d)
	p := c.reserve(3 * c.gran)
	hs := []driver.Handle{c.create(c.gran), c.create(c.gran)}
	for i, h := range hs {
		c.mapHandle(c.chunk(p, i), c.gran, h)
	}
	c.access(p, 2*c.gran, grant(0, driver.AccessReadWrite))
	e := c.event(d, 0)
	g := c.hold(d, s)
	c.fillAll(d, p, 1, s)
	c.record(d, e, s)
	c.mapHandle(c.chunk(p, 2), c.gran, c.create(c.gran))
	c.access(c.chunk(p, 2), c.gran, grant(0, driver.AccessReadWrite))
	c.unmap(c.chunk(p, 1), c.gran)
	c.release(hs[1])
	c.done(d, e, false)
	c.openAndSync(g, d, s)
	c.reads(d, p, c.gran, 1)
}

func unmapAlias(c *check, d driver.Device) {
	s := c.stream(d)
	p, hs := c.chunks(1)
	q := c.mapped(hs[0], driver.AccessReadWrite)
	g := c.hold(d, s)
	c.fillAll(d, p, 1, s)
	c.unmap(q, c.gran)
	c.openAndSync(g, d, s)
	c.reads(d, p, c.gran, 1)
}

func releaseUnderWork(c *check, d driver.Device) {
	s := c.stream(d)
	p, hs := c.chunks(1)
	g := c.hold(d, s)
	c.fillAll(d, p, 1, s)
	c.release(hs[0])
	c.openAndSync(g, d, s)
	c.reads(d, p, c.gran, 1)
}

func widenUnderWork(c *check, d driver.Device, s driver.Stream, p driver.Ptr) {
	g := c.hold(d, s)
	c.fillAll(d, p, 1, s)
	c.access(p, c.gran, grant(1, driver.AccessReadWrite))
	c.access(p, c.gran, grant(0, driver.AccessReadWrite), grant(1, driver.AccessNone))
	c.openAndSync(g, d, s)
	c.reads(d, p, c.gran, 1)
}
