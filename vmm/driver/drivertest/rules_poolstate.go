package drivertest

import (
	"fmt"
	"math"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func poolAttributes(c *check, d driver.Device, i driver.Pooler) {
	pool := c.pool(d, driver.PoolProps{})
	reuse := []driver.PoolAttribute{driver.PoolReuseFollowEvents, driver.PoolReuseOpportunistic, driver.PoolReuseInternalDependencies}
	is := func(a driver.PoolAttribute, want uint64) {
		c.Helper()
		equal(c, c.attribute(d, pool, a), want, "attribute %d", a)
	}
	for _, a := range reuse {
		is(a, 1)
	}
	is(driver.PoolReleaseThreshold, 0)
	for _, a := range reuse {
		c.setAttribute(d, pool, a, 0)
		for _, b := range reuse {
			if a == b {
				is(b, 0)
			} else {
				is(b, 1)
			}
		}
		c.setAttribute(d, pool, a, 1)
	}
	for _, n := range []uint64{1, 1 << 40, math.MaxUint64, 0} {
		c.setAttribute(d, pool, driver.PoolReleaseThreshold, n)
		is(driver.PoolReleaseThreshold, n)
	}
	for a, n := range map[driver.PoolAttribute]uint64{
		driver.PoolReuseOpportunistic: 2, driver.PoolReserved: 0, driver.PoolUsed: 0, driver.PoolReservedPeak: 1, driver.PoolUsedPeak: 1, 0: 0, 9: 0,
	} {
		c.want(i.SetPoolAttribute(pool, a, n), fmt.Sprintf("set attribute %d to %d", a, n), driver.ErrInvalid)
	}
	for _, a := range []driver.PoolAttribute{0, 9, 255} {
		c.want(errOf(i.PoolAttribute(pool, a)), fmt.Sprintf("read attribute %d", a), driver.ErrInvalid)
	}
}

func poolCounts(c *check, d driver.Device, s driver.Stream, pool driver.Pool) {
	between := func(a driver.PoolAttribute, least, most uint64) uint64 {
		c.Helper()
		got := c.attribute(d, pool, a)
		if got < least || got > most {
			c.Errorf("attribute %d is %d, want %d to %d", a, got, least, most)
		}
		return got
	}
	for _, a := range []driver.PoolAttribute{driver.PoolReserved, driver.PoolReservedPeak, driver.PoolUsed, driver.PoolUsedPeak} {
		between(a, 0, 0)
	}
	c.setAttribute(d, pool, driver.PoolReleaseThreshold, math.MaxUint64)
	p, q := c.block(d, pool, blockSize, s), c.block(d, pool, 2*blockSize, s)
	used := between(driver.PoolUsed, 3*blockSize, 4*blockSize)
	between(driver.PoolUsedPeak, used, used)
	reserved := between(driver.PoolReserved, used, math.MaxUint64)
	between(driver.PoolReservedPeak, reserved, reserved)
	c.freeIn(d, q, s)
	c.sync(d, s)
	less := between(driver.PoolUsed, blockSize, used-2*blockSize)
	between(driver.PoolUsedPeak, used, used)
	c.setAttribute(d, pool, driver.PoolUsedPeak, 0)
	between(driver.PoolUsedPeak, less, less)
	c.freeIn(d, p, s)
	c.sync(d, s)
	between(driver.PoolUsed, 0, 0)
	between(driver.PoolReserved, reserved, reserved)
	c.must(as[driver.Pooler](c, d).TrimPool(pool, 0), "trim")
	between(driver.PoolReservedPeak, reserved, reserved)
	c.setAttribute(d, pool, driver.PoolReservedPeak, 0)
	now := c.attribute(d, pool, driver.PoolReserved)
	between(driver.PoolReservedPeak, now, now)
}

func poolThreshold(c *check, d driver.Device, s driver.Stream, pool driver.Pool) {
	e := c.event(d, 0)
	for what, wait := range map[string]func() error{
		"the stream": func() error { return d.SyncStream(s) },
		"an event":   func() error { return d.SyncEvent(e) },
		"the device": d.Sync,
	} {
		for _, threshold := range []uint64{math.MaxUint64, 0} {
			c.setAttribute(d, pool, driver.PoolReleaseThreshold, threshold)
			p := c.block(d, pool, c.gran, s)
			c.freeIn(d, p, s)
			c.record(d, e, s)
			c.must(c.returns("wait for "+what, wait), "wait for %s", what)
			equal(c, c.attribute(d, pool, driver.PoolReserved) > 0, threshold > 0, "after a wait for %s with threshold %d, memory is reserved", what, threshold)
		}
	}
}

func poolTrim(c *check, d driver.Device, s driver.Stream, pool driver.Pool) {
	i := as[driver.Pooler](c, d)
	c.setAttribute(d, pool, driver.PoolReleaseThreshold, math.MaxUint64)
	// CUDA reserves 32 MiB at a time.
	p, q := c.block(d, pool, blockSize, s), c.block(d, pool, 64<<20, s)
	c.fillBlock(d, p, 7, s)
	c.freeIn(d, q, s)
	c.sync(d, s)
	before := c.attribute(d, pool, driver.PoolReserved)
	c.must(i.TrimPool(pool, before), "trim to what there is")
	equal(c, c.attribute(d, pool, driver.PoolReserved), before, "bytes that are left where all were to be kept")
	c.must(i.TrimPool(pool, 0), "trim to nothing")
	after := c.attribute(d, pool, driver.PoolReserved)
	if used := c.attribute(d, pool, driver.PoolUsed); after < used || used < blockSize {
		c.Errorf("%d bytes are reserved and %d used", after, used)
	}
	if after >= before {
		c.Errorf("a trim of %d bytes left %d", before, after)
	}
	c.reads(d, p, blockSize, 7)
	c.freeIn(d, p, s)
	c.sync(d, s)
	c.must(i.TrimPool(pool, 0), "trim to nothing")
	equal(c, c.attribute(d, pool, driver.PoolReserved), 0, "bytes that are left where none is used")
}

func poolMax(c *check, d driver.Device) {
	const limit = 64 << 20
	pool := valueOf(as[driver.Pooler](c, d).CreatePool(driver.PoolProps{Max: limit})).optional(c, "pools with a maximum")
	c.held.pools = append(c.held.pools, owned[driver.Pool]{d, pool})
	s := c.stream(d)
	c.want(errOf(as[driver.Pooler](c, d).AllocFromPool(pool, 4*limit, s)), "allocate four times the maximum", driver.ErrOutOfMemory)
	p := c.block(d, pool, limit/4, s)
	c.freeIn(d, p, s)
	c.sync(d, s)
}

func poolAccess(c *check, d, peer driver.Device) {
	i := as[driver.Pooler](c, d)
	s := c.stream(d)
	pool := c.pool(d, driver.PoolProps{})
	has := func(dev int, want driver.Access) {
		c.Helper()
		got := valueOf(i.PoolAccess(pool, at(dev))).must(c, "ask for the access of device %d", dev)
		equal(c, got, want, "the access of device %d", dev)
	}
	has(0, driver.AccessReadWrite)
	has(1, driver.AccessNone)
	old := c.block(d, pool, blockSize, s)
	c.must(i.SetPoolAccess(pool, []driver.Grant{grant(1, driver.AccessReadWrite)}), "grant")
	has(0, driver.AccessReadWrite)
	has(1, driver.AccessReadWrite)
	for _, p := range []driver.Ptr{old, c.block(d, pool, blockSize, s)} {
		c.sync(d, s)
		c.write(peer, p, blockSize, 3)
		c.reads(d, p, blockSize, 3)
		c.must(peer.Fill(p, 4, 1, blockSize, peer.CopyStream()), "fill by the peer")
		c.must(peer.Sync(), "sync the peer")
		c.reads(d, p, blockSize, 4)
		c.freeIn(d, p, s)
	}
	c.sync(d, s)
	c.must(i.SetPoolAccess(pool, []driver.Grant{grant(1, driver.AccessNone)}), "revoke")
	has(1, driver.AccessNone)
	c.want(i.SetPoolAccess(pool, []driver.Grant{grant(1, driver.AccessReadWrite), grant(0, driver.AccessNone)}), "revoke the owner's", driver.ErrInvalid)
	has(0, driver.AccessReadWrite)
	has(1, driver.AccessNone)
	c.want(i.SetPoolAccess(pool, nil), "grant nothing", driver.ErrInvalid)
	c.want(i.SetPoolAccess(pool, []driver.Grant{grant(len(c.info), driver.AccessReadWrite)}), "grant to a device that does not exist", driver.ErrNoDevice)
	c.want(i.SetPoolAccess(pool, []driver.Grant{grant(1, 77)}), "grant an unknown access", driver.ErrInvalid)
}

func poolNoPath(c *check) {
	c.noPaths(func(from, to int) {
		d := c.dev(to)
		i := as[driver.Pooler](c, d)
		pool := c.pool(d, driver.PoolProps{})
		c.want(i.SetPoolAccess(pool, []driver.Grant{grant(from, driver.AccessReadWrite)}), "grant without a path", driver.ErrInvalid)
		got := valueOf(i.PoolAccess(pool, at(from))).must(c, "ask for access")
		equal(c, got, driver.AccessNone, "the access of device %d to a pool of %d", from, to)
	})
}

func poolElsewhere(c *check, d, peer driver.Device) {
	pool := c.pool(d, driver.PoolProps{})
	c.must(as[driver.Pooler](c, d).SetPoolAccess(pool, []driver.Grant{grant(1, driver.AccessReadWrite)}), "grant")
	s := c.stream(peer)
	for range 2 {
		p := c.block(d, pool, blockSize, s)
		c.isOf(d, p, pool, 0)
		c.fillBlock(peer, p, 5, s)
		c.sync(peer, s)
		c.reads(d, p, blockSize, 5)
		c.freeIn(d, p, s)
		c.sync(peer, s)
	}
	// Freed through the stream's own device too.
	c.freeIn(peer, c.block(d, pool, blockSize, s), s)
	c.sync(peer, s)
}

// copyBetween copies between two devices and checks the bytes.
func (c *check) copyBetween(p, q driver.Ptr) {
	c.Helper()
	d, peer := c.dev(0), c.dev(1)
	i := as[driver.PeerCopier](c, d)
	s := c.stream(d)
	want := pattern(blockSize, 9)
	c.must(d.CopyIn(p, want), "write")
	c.write(peer, q, blockSize, 0)
	c.optional(i.CopyPeer(q+64, 1, p, 0, blockSize-64, s), "PeerCopier")
	c.must(i.CopyPeer(q, 1, p, 0, 0, s), "copy nothing")
	c.sync(d, s)
	c.holds(peer, q, append(make([]byte, 64), want[:blockSize-64]...), "the copy")
	// The other way, in the order of a stream of either device.
	theirs := c.stream(peer)
	c.must(peer.Fill(q, 6, 1, blockSize, theirs), "fill")
	c.must(as[driver.PeerCopier](c, peer).CopyPeer(p, 0, q, 1, blockSize, theirs), "copy back")
	c.sync(peer, theirs)
	c.reads(d, p, blockSize, 6)
}

func copyPeerPlain(c *check) {
	c.copyBetween(c.plainBlock(c.dev(0)), c.plainBlock(c.dev(1)))
}

// plainBlock is plain memory that is freed at the end of the case.
func (c *check) plainBlock(d driver.Device) driver.Ptr {
	c.Helper()
	p := valueOf(as[driver.Allocator](c, d).AllocPlain(blockSize)).optional(c, "plain memory")
	c.held.plain = append(c.held.plain, owned[driver.Ptr]{d, p})
	return p
}

func copyPeerPool(c *check, d, peer driver.Device) {
	s, theirs := c.stream(d), c.stream(peer)
	p := c.block(d, c.pool(d, driver.PoolProps{}), blockSize, s)
	q := c.block(peer, c.pool(peer, driver.PoolProps{}), blockSize, theirs)
	c.sync(d, s)
	c.sync(peer, theirs)
	c.copyBetween(p, q)
	c.freeIn(d, p, s)
	c.freeIn(peer, q, theirs)
}

func copyPeerRefused(c *check, d driver.Device) {
	p, q := c.plainBlock(d), c.plainBlock(c.dev(1))
	i := as[driver.PeerCopier](c, d)
	s := d.CopyStream()
	c.optional(i.CopyPeer(q, 1, p, 0, blockSize, s), "PeerCopier")
	c.want(i.CopyPeer(q, 0, p, 0, blockSize, s), "copy to the wrong device", driver.ErrInvalid)
	c.want(i.CopyPeer(q, 1, p, 1, blockSize, s), "copy from the wrong device", driver.ErrInvalid)
	c.want(i.CopyPeer(q, 1, 1, 0, blockSize, s), "copy from no memory", driver.ErrInvalid)
	c.want(i.CopyPeer(q, 1, p, 0, 1<<63, s), "copy too much", driver.ErrInvalid)
	for _, dev := range []int{-1, len(c.info)} {
		c.want(i.CopyPeer(q, dev, p, 0, blockSize, s), fmt.Sprintf("copy to device %d", dev), driver.ErrNoDevice)
		c.want(i.CopyPeer(q, 1, p, dev, blockSize, s), fmt.Sprintf("copy from device %d", dev), driver.ErrNoDevice)
	}
	c.must(d.Sync(), "sync")
}
