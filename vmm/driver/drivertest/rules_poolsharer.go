package drivertest

import (
	"fmt"
	"os"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func poolSharerRules() []Rule {
	return needing([]Rule{
		{Name: "pool-export", Says: "a pool's descriptor does not pass to programs that this one starts; the default pool and one that is not shared have none", Source: guide, run: onInterface(poolExport)},
		{Name: "pool-import", Says: "another process imports a pool and memory of it, reads, writes and frees that; both see the same bytes; where the driver counts in the imported pool, it counts that", Source: guide, run: onDevice(poolImport), peer: poolImportPeer},
		{Name: "pool-import-limits", Says: "from an imported pool nothing can be allocated, it cannot be the current one, nor be exported", Source: guide, run: onDevice(poolImport), peer: poolImportLimitsPeer},
		{Name: "pool-import-foreign", Says: "a descriptor of anything else is no pool: ErrInvalid, and the device stays healthy", Source: seam, run: onInterface(poolImportForeign)},
		{Name: "pool-import-destroy", Says: "while memory of it is imported a pool is not destroyed, and nothing happens to either; after the free it is", Source: measured, run: onDevice(poolImport), peer: poolImportDestroyPeer},
		{Name: "pool-import-access", Says: "at first only its own device has access to an imported pool", Source: guide, devices: 2, run: onDevice(poolImport), peer: poolImportAccessPeer},
	}, driver.FeaturePools, driver.FeaturePoolShareFD)
}

// exportPool is a pool's descriptor, as a file that is closed at the end of the case.
func (c *check) exportPool(d driver.Device, p driver.Pool) *os.File {
	c.Helper()
	fd := valueOf(as[driver.PoolSharer](c, d).ExportPool(p)).must(c, "export a pool")
	return c.exported(fd)
}

func (c *check) importPool(d driver.Device, f *os.File) driver.Pool {
	c.Helper()
	p := valueOf(as[driver.PoolSharer](c, d).ImportPool(int(f.Fd()))).must(c, "import a pool")
	c.held.pools = append(c.held.pools, owned[driver.Pool]{d, p})
	return p
}

func (c *check) exportPointer(d driver.Device, p driver.Ptr) driver.PoolToken {
	c.Helper()
	return valueOf(as[driver.PoolSharer](c, d).ExportPointer(p)).must(c, "export %v", p)
}

func (c *check) importPointer(d driver.Device, p driver.Pool, t driver.PoolToken) driver.Ptr {
	c.Helper()
	return valueOf(as[driver.PoolSharer](c, d).ImportPointer(p, t)).must(c, "import memory of a pool")
}

func poolExport(c *check, d driver.Device, i driver.PoolSharer) {
	c.cloexec(c.exportPool(d, c.pool(d, driver.PoolProps{Share: driver.ShareFD})))
	own := valueOf(as[driver.Pooler](c, d).DefaultPool()).must(c, "ask for the default pool")
	private := c.pool(d, driver.PoolProps{})
	for what, bad := range map[string]driver.Pool{"the default pool": own, "a private pool": private, "pool 0": 0} {
		c.want(errOf(i.ExportPool(bad)), "export "+what, driver.ErrInvalid)
	}
	s := c.stream(d)
	p := c.block(d, private, blockSize, s)
	plain := c.plainBlock(d)
	for what, bad := range map[string]driver.Ptr{"memory of a private pool": p, "plain memory": plain, "address 0": 0} {
		c.want(errOf(i.ExportPointer(bad)), "export "+what, driver.ErrInvalid)
	}
	c.freeIn(d, p, s)
	c.sync(d, s)
}

// poolImport shares a block of ones, in which the other process writes eights.
func poolImport(c *check, d driver.Device) {
	s := c.stream(d)
	pool, apart := c.pool(d, driver.PoolProps{Share: driver.ShareFD}), c.pool(d, driver.PoolProps{Share: driver.ShareFD})
	p, q := c.block(d, pool, blockSize, s), c.block(d, apart, blockSize, s)
	c.sync(d, s)
	c.write(d, p, blockSize, 1)
	f := c.exportPool(d, pool)
	other := c.startPeer(f)
	c.close(f)
	other.send(c.exportPointer(d, p))
	other.send(c.exportPointer(d, q))
	other.receive()
	c.reads(d, p, blockSize, 8)
	other.finish() // it frees first
	c.freeIn(d, p, s)
	c.freeIn(d, q, s)
	c.sync(d, s)
}

// received is the pool and the block that poolImport shares, imported on device 0.
func (c *check) received(maker *process) (pool driver.Pool, p driver.Ptr, mine, apart driver.PoolToken) {
	c.Helper()
	d := c.dev(0)
	f := c.file(0)
	pool = c.importPool(d, f)
	c.close(f)
	mine, apart = maker.receive(), maker.receive()
	p = c.importPointer(d, pool, mine)
	c.reads(d, p, blockSize, 1)
	c.write(d, p, blockSize, 8)
	return pool, p, mine, apart
}

func poolImportPeer(c *check, maker *process) {
	d := c.dev(0)
	s := c.stream(d)
	pool, p, mine, apart := c.received(maker)
	c.isOf(d, p, pool, 0)
	c.importedCounts(d, pool, blockSize)
	equal(c, c.importPointer(d, pool, mine), p, "the address of memory that is imported again")
	// Of another pool, where the driver can tell.
	if q, err := as[driver.PoolSharer](c, d).ImportPointer(pool, apart); err != nil {
		c.want(err, "import memory of another pool", driver.ErrInvalid)
	} else {
		c.Logf("memory of another pool was imported at %v", q)
	}
	c.want(errOf(as[driver.PoolSharer](c, d).ImportPointer(pool, driver.PoolToken{})), "import by zeros", driver.ErrInvalid)
	if err := as[driver.Pooler](c, d).TrimPool(pool, 0); err != nil {
		c.want(err, "trim", driver.ErrInvalid)
	}
	c.reads(d, p, blockSize, 8)
	c.freeIn(d, p, s)
	c.sync(d, s)
	c.importedCounts(d, pool, 0)
	c.unbalanced = true // one free for two imports
	maker.send(mine)
}

// importedCounts checks the attributes of an imported pool of which n bytes are imported.
// The driver may refuse any of them.
func (c *check) importedCounts(d driver.Device, pool driver.Pool, n uint64) {
	c.Helper()
	i := as[driver.Pooler](c, d)
	for a := driver.PoolReuseFollowEvents; a <= driver.PoolUsedPeak; a++ {
		got, err := i.PoolAttribute(pool, a)
		switch counts := a >= driver.PoolReserved; {
		case err != nil:
			c.want(err, fmt.Sprintf("read attribute %d of an imported pool", a), driver.ErrInvalid)
		case counts && got < n, a == driver.PoolUsed && n == 0 && got > 0:
			c.Errorf("attribute %d of an imported pool is %d, and %d bytes are imported", a, got, n)
		}
	}
	const kept = 1 << 30
	if err := i.SetPoolAttribute(pool, driver.PoolReleaseThreshold, kept); err != nil {
		c.want(err, "set the threshold of an imported pool", driver.ErrInvalid)
	} else {
		equal(c, c.attribute(d, pool, driver.PoolReleaseThreshold), kept, "the threshold of an imported pool")
	}
}

func poolImportLimitsPeer(c *check, maker *process) {
	d := c.dev(0)
	i, sharer := as[driver.Pooler](c, d), as[driver.PoolSharer](c, d)
	pool, p, mine, _ := c.received(maker)
	c.want(errOf(i.AllocFromPool(pool, blockSize, d.CopyStream())), "allocate from an imported pool", driver.ErrInvalid)
	c.want(i.SetCurrentPool(pool), "make it the current one", driver.ErrInvalid)
	c.want(errOf(sharer.ExportPool(pool)), "export it again", driver.ErrInvalid)
	own := valueOf(i.DefaultPool()).must(c, "ask for the default pool")
	c.want(errOf(sharer.ImportPointer(own, mine)), "import memory into the default pool", driver.ErrInvalid)
	c.freeBlock(d, p)
	maker.send(mine)
}

func poolImportDestroyPeer(c *check, maker *process) {
	d := c.dev(0)
	s := c.stream(d)
	pool, p, mine, _ := c.received(maker)
	c.want(as[driver.Pooler](c, d).DestroyPool(pool), "destroy a pool whose memory is imported", driver.ErrInvalid)
	c.reads(d, p, blockSize, 8)
	c.freeIn(d, p, s)
	c.sync(d, s)
	p = c.importPointer(d, pool, mine)
	c.reads(d, p, blockSize, 8)
	c.freeBlock(d, p)
	c.destroy(d, pool)
	c.want(errOf(as[driver.PoolSharer](c, d).ImportPointer(pool, mine)), "import memory of a pool that was destroyed", driver.ErrInvalid)
	c.want(as[driver.Pooler](c, d).DestroyPool(pool), "destroy it again", driver.ErrInvalid)
	maker.send(mine)
}

func poolImportAccessPeer(c *check, maker *process) {
	d, other := c.dev(0), c.dev(1)
	i := as[driver.Pooler](c, d)
	pool, p, mine, _ := c.received(maker)
	for dev, want := range []driver.Access{driver.AccessReadWrite, driver.AccessNone} {
		equal(c, valueOf(i.PoolAccess(pool, at(dev))).must(c, "ask for access"), want, "the access of device %d to an imported pool", dev)
	}
	c.must(i.SetPoolAccess(pool, []driver.Grant{grant(1, driver.AccessReadWrite)}), "grant")
	c.reads(other, p, blockSize, 8)
	c.freeBlock(d, p)
	maker.send(mine)
}

func poolImportForeign(c *check, d driver.Device, i driver.PoolSharer) {
	foreign := c.foreign("/dev/null", "/dev/nvidiactl")
	if c.d.Supports(0, driver.FeatureShareFD) == nil {
		foreign["exported memory"] = c.export(c.createAs(c.gran, shared()))
	}
	c.noImport(foreign, func(fd int) error { return errOf(i.ImportPool(fd)) })
	for _, fd := range []int{-1, 1 << 30} {
		c.want(errOf(i.ImportPool(fd)), fmt.Sprintf("import descriptor %d", fd), driver.ErrInvalid)
	}
	c.must(d.Sync(), "sync afterwards")
}
