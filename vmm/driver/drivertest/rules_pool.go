package drivertest

import (
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func poolRules() []Rule {
	rules := needing([]Rule{
		{Name: "pool-current", Says: "AllocAsync takes from the current pool: the default one until another is set, and again when that is destroyed", Source: manual, run: onInterface(poolCurrent)},
		{Name: "pool-current-own", Says: "a pool of another device cannot be made the current one", Source: manual, devices: 2, run: onPair(poolCurrentOwn)},
		{Name: "pool-blocks", Says: "memory of a pool can be written and read to its end, and overlaps no other", Source: manual, run: onPool(poolBlocks)},
		{Name: "pool-sizes", Says: "an allocation of 0 bytes from a pool is ErrInvalid, one beyond the device's memory ErrOutOfMemory, and the next one works", Source: manual, run: onPool(poolSizes)},
		{Name: "pool-free", Says: "memory of a pool and plain memory are freed in a stream's order or at once, each only once", Source: guide, run: onPool(poolFree)},
		{Name: "pool-destroy", Says: "memory outlives its pool and is freed as before; the pool is ErrInvalid from then on", Source: manual, run: onPool(poolDestroy)},
		{Name: "pool-unknown", Says: "what is no pool is ErrInvalid to every call, and the default pool cannot be destroyed", Source: seam, run: onInterface(poolUnknown)},
		{Name: "pool-attributes", Says: "all policies are on at first and the threshold is 0; what is set is read back", Source: manual, run: onInterface(poolAttributes)},
		{Name: "pool-counts", Says: "a pool has reserved at least what is used, and its peaks stay until they are reset to what is", Source: manual, run: onPool(poolCounts)},
		{Name: "pool-threshold", Says: "a synchronize releases what a pool holds beyond its threshold, whatever is waited for", Source: guide, run: onPool(poolThreshold)},
		{Name: "pool-trim", Says: "a trim releases what no one uses, and nothing below what is to be kept", Source: manual, run: onPool(poolTrim)},
		{Name: "pool-max", Says: "from a pool with a maximum nothing larger can be allocated", Source: manual, run: onDevice(poolMax)},
		{Name: "pool-of", Says: "PoolOf knows the pool and the device of an address, and what is of no pool", Source: guide, run: onPool(poolOf)},
		{Name: "pool-access", Says: "access to a pool is of all its memory, present and future, and its own device's cannot be revoked", Source: guide, devices: 2, run: onPair(poolAccess)},
		{Name: "pool-no-path", Says: "a device without a path has no access to a pool, and a grant to it changes nothing", Source: guide, run: poolNoPath},
		{Name: "pool-elsewhere", Says: "memory of a pool can be allocated, used and freed in a stream of another device with access", Source: manual, devices: 2, run: onPair(poolElsewhere)},
		{Name: "pool-shares", Says: "a pool can be created for the ways to share that PoolShares returns, and for no other", Source: seam, run: onInterface(poolShares)},
		{Name: "pool-close", Says: "after Close, calls with pools are ErrClosed", Source: seam, run: poolClose},
	}, driver.FeaturePools)
	return append(rules,
		Rule{Name: "copy-peer", Says: "bytes of plain memory are copied between two devices without access", Source: manual, devices: 2, run: copyPeerPlain},
		Rule{Name: "copy-peer-pool", Says: "bytes of pools are copied between two devices without access", Source: guide, devices: 2, needs: []driver.Feature{driver.FeaturePools}, run: onPair(copyPeerPool)},
		Rule{Name: "copy-peer-refused", Says: "a copy to or from a device that the memory is not of is ErrInvalid, of one that does not exist ErrNoDevice", Source: seam, devices: 2, run: onDevice(copyPeerRefused)})
}

// blockSize is what most rules allocate: less than any driver maps at once.
const blockSize = 64 << 10

// pool makes a pool on a device.
func (c *check) pool(d driver.Device, props driver.PoolProps) driver.Pool {
	c.Helper()
	p := valueOf(as[driver.Pooler](c, d).CreatePool(props)).must(c, "create a pool with %+v", props)
	c.held.pools = append(c.held.pools, owned[driver.Pool]{d, p})
	return p
}

// onPool is the run of a Rule that calls f with device 0, a stream of it, and a new pool on it.
func onPool(f func(*check, driver.Device, driver.Stream, driver.Pool)) func(*check) {
	return onDevice(func(c *check, d driver.Device) {
		c.Helper()
		f(c, d, c.stream(d), c.pool(d, driver.PoolProps{}))
	})
}

// destroy gives a pool of the case up.
func (c *check) destroy(d driver.Device, p driver.Pool) {
	c.Helper()
	c.must(c.prompt("destroy a pool", func() error { return as[driver.Pooler](c, d).DestroyPool(p) }), "destroy a pool")
	c.held.pools = slices.DeleteFunc(c.held.pools, func(x owned[driver.Pool]) bool { return x.it == p })
}

// block allocates n bytes of a pool in a stream.
func (c *check) block(d driver.Device, from driver.Pool, n uint64, s driver.Stream) driver.Ptr {
	c.Helper()
	alloc := func() (driver.Ptr, error) { return as[driver.Pooler](c, d).AllocFromPool(from, n, s) }
	return prompted(c, "allocate from a pool", alloc).must(c, "allocate %d bytes of a pool", n)
}

// freeIn frees memory in the order of a stream.
func (c *check) freeIn(d driver.Device, p driver.Ptr, s driver.Stream) {
	c.Helper()
	c.must(c.prompt("free in a stream", func() error { return as[driver.Allocator](c, d).FreeAsync(p, s) }), "free %v in a stream", p)
}

// fillBlock queues a fill of blockSize bytes, and moveBlock a copy.
func (c *check) fillBlock(d driver.Device, p driver.Ptr, b byte, s driver.Stream) {
	c.Helper()
	c.must(c.prompt("queue a fill", func() error { return d.Fill(p, uint32(b), 1, blockSize, s) }), "queue a fill")
}

func (c *check) moveBlock(d driver.Device, dst, src driver.Ptr, s driver.Stream) {
	c.Helper()
	c.must(c.prompt("queue a copy", func() error { return d.Copy(dst, src, blockSize, s) }), "queue a copy")
}

func (c *check) attribute(d driver.Device, p driver.Pool, a driver.PoolAttribute) uint64 {
	c.Helper()
	return valueOf(as[driver.Pooler](c, d).PoolAttribute(p, a)).must(c, "read attribute %d", a)
}

func (c *check) setAttribute(d driver.Device, p driver.Pool, a driver.PoolAttribute, n uint64) {
	c.Helper()
	c.must(as[driver.Pooler](c, d).SetPoolAttribute(p, a, n), "set attribute %d to %d", a, n)
}

// isOf checks which pool and device an address is of.
func (c *check) isOf(d driver.Device, p driver.Ptr, pool driver.Pool, dev int) {
	c.Helper()
	of, on, err := as[driver.Pooler](c, d).PoolOf(p)
	c.must(err, "ask for the pool of %v", p)
	equal(c, of, pool, "the pool of %v", p)
	equal(c, on, dev, "the device of %v", p)
}

func poolCurrent(c *check, d driver.Device, i driver.Pooler) {
	s := c.stream(d)
	own := valueOf(i.DefaultPool()).must(c, "ask for the default pool")
	current := func(want driver.Pool) {
		c.Helper()
		got := valueOf(i.CurrentPool()).must(c, "ask for the current pool")
		equal(c, got, want, "the current pool")
		p := valueOf(as[driver.Allocator](c, d).AllocAsync(blockSize, s)).must(c, "allocate from the current pool")
		c.isOf(d, p, want, 0)
		c.freeIn(d, p, s)
		c.sync(d, s)
	}
	current(own)
	one, two := c.pool(d, driver.PoolProps{}), c.pool(d, driver.PoolProps{})
	current(own)
	for _, p := range []driver.Pool{one, two, own, two} {
		c.must(i.SetCurrentPool(p), "set the current pool")
		current(p)
	}
	c.destroy(d, one)
	current(two)
	c.destroy(d, two)
	current(own)
}

func poolCurrentOwn(c *check, d, other driver.Device) {
	i := as[driver.Pooler](c, d)
	before := valueOf(i.CurrentPool()).must(c, "ask for the current pool")
	theirs := valueOf(as[driver.Pooler](c, other).DefaultPool()).must(c, "ask for the other device's default pool")
	for _, p := range []driver.Pool{theirs, c.pool(other, driver.PoolProps{})} {
		c.want(i.SetCurrentPool(p), "set another device's pool", driver.ErrInvalid)
	}
	equal(c, valueOf(i.CurrentPool()).must(c, "ask again"), before, "the current pool")
}

func poolBlocks(c *check, d driver.Device, s driver.Stream, pool driver.Pool) {
	sizes := []uint64{1, 255, 256, 4096, c.gran, 3*c.gran + 5}
	var all []driver.Ptr
	for _, n := range sizes {
		all = append(all, c.block(d, pool, n, s))
	}
	c.sync(d, s)
	for i, n := range sizes {
		c.write(d, all[i], n, byte(i+1))
	}
	for i, n := range sizes {
		c.reads(d, all[i], n, byte(i+1))
		c.freeIn(d, all[i], s)
	}
	c.sync(d, s)
}

func poolSizes(c *check, d driver.Device, s driver.Stream, pool driver.Pool) {
	i := as[driver.Pooler](c, d)
	c.want(errOf(i.AllocFromPool(pool, 0, s)), "allocate nothing", driver.ErrInvalid)
	c.want(errOf(as[driver.Allocator](c, d).AllocAsync(0, s)), "allocate nothing from the current pool", driver.ErrInvalid)
	for _, n := range []uint64{1 << 50, 1 << 62, 1<<64 - 1} {
		c.want(errOf(i.AllocFromPool(pool, n, s)), fmt.Sprintf("allocate %d bytes", n), driver.ErrOutOfMemory, driver.ErrInvalid)
	}
	p := c.block(d, pool, blockSize, s)
	c.freeIn(d, p, s)
	c.sync(d, s)
}

func poolFree(c *check, d driver.Device, s driver.Stream, pool driver.Pool) {
	i := as[driver.Allocator](c, d)
	// A fresh one each time: its address may come back from the next allocation.
	plain := func() driver.Ptr {
		return valueOf(i.AllocPlain(blockSize)).must(c, "allocate plain memory")
	}
	pooled := func() driver.Ptr {
		p := c.block(d, pool, blockSize, s)
		c.sync(d, s)
		return p
	}
	inOrder := func(p driver.Ptr) error { return i.FreeAsync(p, s) }
	for what, alloc := range map[string]func() driver.Ptr{"plain memory": plain, "memory of a pool": pooled} {
		for how, free := range map[string]func(driver.Ptr) error{"in order": inOrder, "at once": i.FreePlain} {
			p := alloc()
			c.write(d, p, blockSize, 1)
			c.must(free(p), "free %s %s", what, how)
			c.sync(d, s)
			c.want(free(p), fmt.Sprintf("free %s %s again", what, how), driver.ErrInvalid)
			c.want(i.FreePlain(p), fmt.Sprintf("free %s, freed %s, at once", what, how), driver.ErrInvalid)
		}
	}
	p, _ := c.chunks(1)
	c.want(i.FreeAsync(p, s), "free mapped memory in order", driver.ErrInvalid)
	c.must(d.Sync(), "sync")
}

func poolDestroy(c *check, d driver.Device, s driver.Stream, pool driver.Pool) {
	i := as[driver.Pooler](c, d)
	p, q := c.block(d, pool, blockSize, s), c.block(d, pool, blockSize, s)
	c.destroy(d, pool)
	c.want(errOf(i.AllocFromPool(pool, blockSize, s)), "allocate from a destroyed pool", driver.ErrInvalid)
	c.want(i.DestroyPool(pool), "destroy it again", driver.ErrInvalid)
	c.fillBlock(d, p, 1, s)
	c.moveBlock(d, q, p, s)
	c.sync(d, s)
	c.reads(d, q, blockSize, 1)
	c.freeIn(d, p, s)
	c.must(as[driver.Allocator](c, d).FreePlain(q), "free at once")
	c.sync(d, s)
}

func poolUnknown(c *check, d driver.Device, i driver.Pooler) {
	s := c.stream(d)
	gone := c.pool(d, driver.PoolProps{})
	c.destroy(d, gone)
	for _, p := range []driver.Pool{0, gone} {
		c.want(errOf(i.AllocFromPool(p, blockSize, s)), "allocate", driver.ErrInvalid)
		c.want(i.TrimPool(p, 0), "trim", driver.ErrInvalid)
		c.want(errOf(i.PoolAttribute(p, driver.PoolUsed)), "read an attribute", driver.ErrInvalid)
		c.want(i.SetPoolAttribute(p, driver.PoolReleaseThreshold, 1), "set an attribute", driver.ErrInvalid)
		c.want(i.SetPoolAccess(p, []driver.Grant{grant(0, driver.AccessReadWrite)}), "set access", driver.ErrInvalid)
		c.want(errOf(i.PoolAccess(p, at(0))), "ask for access", driver.ErrInvalid)
		c.want(i.SetCurrentPool(p), "make it current", driver.ErrInvalid)
		c.want(i.DestroyPool(p), "destroy", driver.ErrInvalid)
	}
	own := valueOf(i.DefaultPool()).must(c, "ask for the default pool")
	c.want(i.DestroyPool(own), "destroy the default pool", driver.ErrInvalid)
	equal(c, valueOf(i.DefaultPool()).must(c, "ask again"), own, "the default pool")
}

func poolOf(c *check, d driver.Device, s driver.Stream, pool driver.Pool) {
	p := c.block(d, pool, blockSize, s)
	c.isOf(d, p, pool, 0)
	c.isOf(d, p+blockSize-1, pool, 0)
	plain := valueOf(as[driver.Allocator](c, d).AllocPlain(blockSize)).must(c, "allocate plain memory")
	c.isOf(d, plain, 0, 0)
	mapped, _ := c.chunks(1)
	c.isOf(d, mapped, 0, 0)
	for _, bad := range []driver.Ptr{0, 1, 1<<64 - 1} {
		_, _, err := as[driver.Pooler](c, d).PoolOf(bad)
		c.want(err, fmt.Sprintf("ask for the pool of %v", bad), driver.ErrInvalid)
	}
	c.freeIn(d, p, s)
	c.must(as[driver.Allocator](c, d).FreePlain(plain), "free plain memory")
	c.sync(d, s)
}

func poolShares(c *check, d driver.Device, i driver.Pooler) {
	ways := valueOf(i.PoolShares()).must(c, "ask how pools can be shared")
	for f, way := range map[driver.Feature]driver.Share{driver.FeaturePoolShareFD: driver.ShareFD, driver.FeaturePoolShareFabric: driver.ShareFabric} {
		can := ways&way != 0
		c.agrees(f, can, "PoolShares returns %#x", uint8(ways))
		if can {
			c.pool(d, driver.PoolProps{Share: way})
			continue
		}
		c.want(errOf(i.CreatePool(driver.PoolProps{Share: way})), fmt.Sprintf("create a pool with share %#x", uint8(way)), driver.ErrNotSupported, driver.ErrPermission, driver.ErrInvalid)
	}
	c.want(errOf(i.CreatePool(driver.PoolProps{Share: driver.ShareReadOnly})), "create a pool that is shared read-only", driver.ErrNotSupported)
	c.want(errOf(i.CreatePool(driver.PoolProps{Share: 1 << 6})), "create a pool with an unknown share", driver.ErrInvalid)
}

func poolClose(c *check) {
	d := c.openDevice(0)
	i := as[driver.Pooler](c, d)
	pool := valueOf(i.CreatePool(driver.PoolProps{})).must(c, "create a pool")
	c.must(i.DestroyPool(pool), "destroy it")
	c.must(d.Close(), "close")
	c.want(errOf(i.DefaultPool()), "ask for the default pool", driver.ErrClosed)
	c.want(errOf(i.CreatePool(driver.PoolProps{})), "create a pool", driver.ErrClosed)
	c.want(errOf(i.AllocFromPool(pool, blockSize, 0)), "allocate", driver.ErrClosed)
	c.want(i.DestroyPool(pool), "destroy a pool", driver.ErrClosed)
	_, _, err := i.PoolOf(1)
	c.want(err, "ask for the pool of an address", driver.ErrClosed)
	c.want(errOf(i.PoolShares()), "ask how pools can be shared", driver.ErrClosed)
	c.want(as[driver.PeerCopier](c, d).CopyPeer(1, 0, 1, 0, 1, 0), "copy between devices", driver.ErrClosed, driver.ErrNotSupported)
}
