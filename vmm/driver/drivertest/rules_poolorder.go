package drivertest

import "github.com/cuvmm/cuvmm/vmm/driver"

func poolOrderRules() []Rule {
	gated := []driver.Feature{driver.FeaturePools, driver.FeatureStreamMemOps}
	return []Rule{
		{Name: "pool-order", Says: "memory is allocated, used, freed and allocated again in a stream's order, and no call waits for it", Source: guide, needs: gated, run: onPool(poolOrder)},
		{Name: "pool-apart", Says: "memory freed in a stream is not another stream's before the free has run", Source: guide, needs: gated, run: onDevice(poolApart)},
		{Name: "pool-follow", Says: "a stream that waits for an event after a free may have the memory at once", Source: guide, needs: gated, run: onDevice(poolFollow)},
		{Name: "pool-free-elsewhere", Says: "memory can be freed in another stream, which waits for its use", Source: guide, needs: gated, run: onDevice(poolFreeElsewhere)},
		{Name: "pool-trim-late", Says: "a trim leaves memory alone whose free has not run", Source: manual, needs: gated, run: onPool(poolTrimLate)},
		{Name: "pool-destroy-late", Says: "destroying a pool harms no work, and waits for none", Source: manual, needs: gated, run: onPool(poolDestroyLate)},
		{Name: "pool-plain-late", Says: "plain memory freed in a stream stays until the free has run", Source: guide, needs: gated, run: onDevice(poolPlainLate)},
		{Name: "copy-peer-order", Says: "a copy between devices runs in its stream's order", Source: guide, devices: 2, needs: gated, run: onPair(copyPeerOrder)},
	}
}

func poolOrder(c *check, d driver.Device, s driver.Stream, pool driver.Pool) {
	to := c.scratch(4)
	g := c.hold(d, s)
	for i := range 4 {
		p := c.block(d, pool, blockSize, s)
		c.fillBlock(d, p, byte(i+1), s)
		c.moveBlock(d, to+driver.Ptr(i*blockSize), p, s)
		c.freeIn(d, p, s)
	}
	c.openAndSync(g, d, s)
	for i := range 4 {
		c.reads(d, to+driver.Ptr(i*blockSize), blockSize, byte(i+1))
	}
}

// poolApart: were the memory one, the late work of the first stream would be seen in the
// second one's.
func poolApart(c *check, d driver.Device) {
	s, other := c.stream(d), c.stream(d)
	pool := c.pool(d, driver.PoolProps{})
	// With a wait for the first stream the memory could be had, but the gate is closed.
	c.setAttribute(d, pool, driver.PoolReuseInternalDependencies, 0)
	to := c.scratch(1)
	p := c.block(d, pool, blockSize, s)
	c.sync(d, s)
	g := c.hold(d, s)
	c.fillBlock(d, p, 1, s)
	c.moveBlock(d, to, p, s)
	c.freeIn(d, p, s)
	q := c.apart(d, pool, p, other)
	c.openAndSync(g, d, s)
	c.reads(d, to, blockSize, 1)
	c.reads(d, q, blockSize, 2)
	c.freeIn(d, q, other)
	c.sync(d, other)
}

// apart allocates a block in a stream that has no work, checks that it is not p, which
// work of another stream uses, and fills it with 2.
func (c *check) apart(d driver.Device, pool driver.Pool, p driver.Ptr, s driver.Stream) driver.Ptr {
	c.Helper()
	q := c.block(d, pool, blockSize, s)
	if p < q+blockSize && q < p+blockSize {
		c.Errorf("%v is in use, and %v was allocated in another stream", p, q)
	}
	c.fillBlock(d, q, 2, s)
	c.sync(d, s)
	return q
}

func poolFollow(c *check, d driver.Device) {
	s, other := c.stream(d), c.stream(d)
	e, after := c.event(d, 0), c.event(d, 0)
	pool := c.pool(d, driver.PoolProps{})
	to := c.scratch(2)
	p := c.block(d, pool, blockSize, s)
	g := c.hold(d, s)
	c.fillBlock(d, p, 1, s)
	c.moveBlock(d, to, p, s)
	c.freeIn(d, p, s)
	c.record(d, e, s)
	c.waitFor(d, other, e)
	q := c.block(d, pool, blockSize, other)
	c.fillBlock(d, q, 2, other)
	c.moveBlock(d, to+blockSize, q, other)
	c.freeIn(d, q, other)
	c.record(d, after, other)
	c.staysBehind(g, "sync an event behind the gate", func() error { return d.SyncEvent(after) })
	c.sync(d, other)
	c.reads(d, to, blockSize, 1)
	c.reads(d, to+blockSize, blockSize, 2)
}

func poolFreeElsewhere(c *check, d driver.Device) {
	s, other, third := c.stream(d), c.stream(d), c.stream(d)
	e := c.event(d, 0)
	pool := c.pool(d, driver.PoolProps{})
	c.setAttribute(d, pool, driver.PoolReuseInternalDependencies, 0)
	to := c.scratch(1)
	p := c.block(d, pool, blockSize, s)
	g := c.hold(d, s)
	c.fillBlock(d, p, 1, s)
	c.record(d, e, s)
	c.waitFor(d, other, e)
	c.moveBlock(d, to, p, other)
	c.freeIn(d, p, other)
	q := c.apart(d, pool, p, third)
	c.openAndSync(g, d, other)
	c.reads(d, to, blockSize, 1)
	c.reads(d, q, blockSize, 2)
	c.freeIn(d, q, third)
}

func poolTrimLate(c *check, d driver.Device, s driver.Stream, pool driver.Pool) {
	to := c.scratch(1)
	p := c.block(d, pool, blockSize, s)
	g := c.hold(d, s)
	c.fillBlock(d, p, 1, s)
	c.moveBlock(d, to, p, s)
	c.freeIn(d, p, s)
	c.must(c.prompt("trim", func() error { return as[driver.Pooler](c, d).TrimPool(pool, 0) }), "trim")
	if n := c.attribute(d, pool, driver.PoolReserved); n < blockSize {
		c.Errorf("%d bytes are reserved, and %d in use by queued work", n, blockSize)
	}
	c.openAndSync(g, d, s)
	c.reads(d, to, blockSize, 1)
}

func poolDestroyLate(c *check, d driver.Device, s driver.Stream, pool driver.Pool) {
	to := c.scratch(1)
	p, q := c.block(d, pool, blockSize, s), c.block(d, pool, blockSize, s)
	g := c.hold(d, s)
	c.fillBlock(d, p, 1, s)
	c.moveBlock(d, q, p, s)
	c.freeIn(d, p, s)
	c.destroy(d, pool)
	c.moveBlock(d, to, q, s)
	c.freeIn(d, q, s)
	c.openAndSync(g, d, s)
	c.reads(d, to, blockSize, 1)
}

func poolPlainLate(c *check, d driver.Device) {
	s := c.stream(d)
	to := c.scratch(1)
	p := valueOf(as[driver.Allocator](c, d).AllocPlain(blockSize)).must(c, "allocate plain memory")
	g := c.hold(d, s)
	c.fillBlock(d, p, 1, s)
	c.moveBlock(d, to, p, s)
	c.freeIn(d, p, s)
	c.openAndSync(g, d, s)
	c.reads(d, to, blockSize, 1)
}

func copyPeerOrder(c *check, d, peer driver.Device) {
	p := c.scratch(1)
	ours, theirs := c.plainBlock(d), c.plainBlock(peer)
	s := c.stream(d)
	i := as[driver.PeerCopier](c, d)
	// The first copy may make a context.
	c.optional(i.CopyPeer(theirs, 1, ours, 0, blockSize, s), "PeerCopier")
	c.sync(d, s)
	c.write(peer, theirs, blockSize, 0)
	g := c.hold(d, s)
	c.fillBlock(d, ours, 1, s)
	c.must(c.prompt("copy", func() error { return i.CopyPeer(theirs, 1, ours, 0, blockSize, s) }), "copy")
	c.fillBlock(d, ours, 2, s)
	c.must(c.prompt("copy back", func() error { return i.CopyPeer(ours, 0, theirs, 1, blockSize, s) }), "copy back")
	c.moveBlock(d, p, ours, s)
	c.reads(peer, theirs, blockSize, 0)
	c.openAndSync(g, d, s)
	c.reads(peer, theirs, blockSize, 1)
	c.reads(d, p, blockSize, 1)
}

// scratch is memory for n blocks, which device 0 may use.
func (c *check) scratch(n uint64) driver.Ptr {
	c.Helper()
	p, _ := c.chunks(int((n*blockSize + c.gran - 1) / c.gran))
	return p
}
