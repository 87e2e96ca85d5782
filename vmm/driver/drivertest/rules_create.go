package drivertest

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func createRules() []Rule {
	return []Rule{
		{Name: "create-size", Says: "to create 0 bytes, or a size that is no multiple of the granularity, is ErrInvalid", Source: measured, run: createSize},
		{Name: "create-too-much", Says: "more memory than the device has is ErrOutOfMemory", Source: measured, run: createTooMuch},
		{Name: "create-until-full", Says: "a full device returns ErrOutOfMemory, and has memory again after a release", Source: manual, run: createUntilFull},
		{Name: "create-refused", Says: "LocationOwner and kinds of location that do not exist are ErrInvalid", Source: seam, run: createRefused},
		{Name: "create-properties", Says: "Properties says what memory was created with; without such a handle it is ErrInvalid", Source: seam, run: createProperties},
		{Name: "create-share", Says: "ways to share that do not exist are ErrInvalid", Source: seam, run: createShare},
		{Name: "create-fabric", Says: "without a fabric, memory for fabric handles is refused, whatever attributes say", Source: measured, run: createFabric},
		{Name: "host-numa", Says: "memory of a host node is visible to a device with access", Source: measured, needs: []driver.Feature{driver.FeatureHostNUMA}, run: hostNUMA},
		{Name: "no-host-numa", Says: "memory of a host node is ErrNotSupported where the feature is", Source: seam, run: noHostNUMA},
		{Name: "fresh-zero", Says: "new memory reads zero, also if it held data before", Source: measured, run: onDevice(freshZero)},
		{Name: "release-once", Says: "releasing a handle twice, or one that was never created, is ErrInvalid", Source: manual, run: releaseOnce},
		{Name: "release-mapped", Says: "a mapping outlives the release of its handle", Source: guide, run: onDevice(releaseMapped)},
		{Name: "memory-back", Says: "memory comes back exactly when it is released and unmapped, in either order", Source: contract(3), run: onDevice(memoryBack)},
	}
}

func createSize(c *check) {
	for _, size := range []uint64{0, 1, c.gran - 1, c.gran + 1, c.gran + c.gran/2} {
		c.want(errOf(c.d.Create(size, private(0))), fmt.Sprintf("create %d bytes", size), driver.ErrInvalid)
	}
}

func createTooMuch(c *check) {
	for _, size := range []uint64{1 << 40, 1 << 50, (c.info[0].Memory/c.gran + 1) * c.gran} {
		if size <= c.info[0].Memory {
			continue
		}
		c.want(errOf(c.d.Create(size, private(0))), fmt.Sprintf("create %d bytes", size), driver.ErrOutOfMemory)
	}
	for _, size := range []uint64{1 << 63, -c.gran} {
		c.want(errOf(c.d.Create(size, private(0))), fmt.Sprintf("create %d bytes", size), driver.ErrOutOfMemory, driver.ErrInvalid)
	}
	c.create(c.gran)
}

func createUntilFull(c *check) {
	piece := c.info[0].Memory / 8 / c.gran * c.gran
	var hs []driver.Handle
	for len(hs) <= 8 {
		h, err := c.d.Create(piece, private(0))
		if err != nil {
			c.want(err, "create on a full device", driver.ErrOutOfMemory)
			break
		}
		c.held.handles[h] = true
		hs = append(hs, h)
	}
	if len(hs) > 8 {
		c.Fatalf("%d pieces of %d bytes fit into %d", len(hs), piece, c.info[0].Memory)
	}
	if len(hs) == 0 {
		c.skip("an eighth of the device's memory is not free")
	}
	c.release(hs[0])
	c.create(piece)
}

func createRefused(c *check) {
	for _, home := range []driver.Location{{}, {Kind: driver.LocationOwner, ID: 3}, {Kind: 99}} {
		c.want(errOf(c.d.Create(c.gran, driver.Prop{Location: home})), fmt.Sprintf("create on %v", home), driver.ErrInvalid)
	}
}

func createShare(c *check) {
	c.want(errOf(c.d.Create(c.gran, driver.Prop{Location: at(0), Share: 1 << 7})), "create with an unknown way to share", driver.ErrInvalid)
}

func createFabric(c *check) {
	if c.d.Supports(0, driver.FeatureShareFabric) == nil {
		c.skip("the fabric is set up")
	}
	c.want(errOf(c.d.Create(c.gran, driver.Prop{Location: at(0), Share: driver.ShareFabric})), "create fabric memory", driver.ErrNotSupported, driver.ErrPermission)
}

func hostNUMA(c *check) {
	node := driver.Location{Kind: driver.LocationHostNUMA}
	gran := valueOf(c.d.Granularity(driver.Prop{Location: node})).must(c, "granularity of %v", node)
	p := c.reserve(gran)
	h := c.createAs(gran, driver.Prop{Location: node})
	c.mapHandle(p, gran, h)
	c.access(p, gran, grant(0, driver.AccessReadWrite), driver.Grant{To: node, Access: driver.AccessReadWrite})
	c.reads(c.dev(0), p, gran, 0)
	c.write(c.dev(0), p, gran, 7)
	c.reads(c.dev(0), p, gran, 7)
	c.want(errOf(c.d.Create(gran, driver.Prop{Location: driver.Location{Kind: driver.LocationHostNUMA, ID: 1 << 20}})), "create on a node that is not there", driver.ErrInvalid, driver.ErrNoDevice)
}

func noHostNUMA(c *check) {
	if c.d.Supports(0, driver.FeatureHostNUMA) == nil {
		c.skip("host nodes are supported")
	}
	c.want(errOf(c.d.Create(c.gran, driver.Prop{Location: driver.Location{Kind: driver.LocationHostNUMA}})), "create on a host node", driver.ErrNotSupported)
}

func freshZero(c *check, d driver.Device) {
	for range 4 {
		p, hs := c.chunks(2)
		c.reads(d, p, 2*c.gran, 0)
		c.write(d, p, 2*c.gran, 0xa5)
		c.unmap(p, 2*c.gran)
		c.release(hs[0])
		c.release(hs[1])
		c.free(p)
	}
}

func releaseOnce(c *check) {
	h := c.create(c.gran)
	c.release(h)
	c.want(c.d.Release(h), "release again", driver.ErrInvalid)
	c.want(c.d.Release(0), "release handle 0", driver.ErrInvalid)
	p := c.reserve(c.gran)
	c.want(c.d.Map(p, c.gran, h), "map a released handle", driver.ErrInvalid)
}

func releaseMapped(c *check, d driver.Device) {
	p, hs := c.chunks(1)
	c.write(d, p, c.gran, 3)
	c.release(hs[0])
	c.reads(d, p, c.gran, 3)
	c.write(d, p, c.gran, 4)
	c.reads(d, p, c.gran, 4)
	c.want(c.d.Release(hs[0]), "release again while mapped", driver.ErrInvalid)
}

func memoryBack(c *check, d driver.Device) {
	size := 16 * c.gran
	p := c.reserve(size)
	before := c.freeMemory(d)
	for _, releaseFirst := range []bool{false, true} {
		h := c.create(size)
		c.mapHandle(p, size, h)
		c.taken(d, size, before, "while mapped")
		// The first of the two must not free the memory, the second must.
		if releaseFirst {
			c.release(h)
			c.taken(d, size, before, "released while mapped")
		}
		c.unmap(p, size)
		if !releaseFirst {
			c.release(h)
		}
		c.allFree(d, before, "after all was given back")
	}
	// A create that fails must not count anything.
	_, err := c.d.Create(size+1, private(0))
	if err == nil || errors.Is(err, driver.ErrOutOfMemory) {
		c.Errorf("create of an odd size: %v", err)
	}
	c.allFree(d, before, "after a refused create")
}

// taken checks that at least n bytes less are free than before.
func (c *check) taken(d driver.Device, n, before uint64, when string) {
	c.Helper()
	if now := c.freeMemory(d); now+n > before {
		c.Errorf("%s %d bytes are free, %d before", when, now, before)
	}
}

// allFree checks that as much is free as before.
func (c *check) allFree(d driver.Device, before uint64, when string) {
	c.Helper()
	equal(c, c.freeMemory(d), before, "%s bytes are free", when)
}

func (c *check) freeMemory(d driver.Device) uint64 {
	c.Helper()
	free, total, err := d.MemInfo()
	c.must(err, "ask for free memory")
	if free > total || total == 0 {
		c.Fatalf("%d bytes free of %d", free, total)
	}
	return free
}

func createProperties(c *check) {
	for dev := range c.info {
		props := []driver.Prop{private(dev)}
		for _, f := range []struct {
			feature driver.Feature
			prop    driver.Prop
		}{
			{driver.FeatureShareFD, driver.Prop{Share: driver.ShareFD}},
			{driver.FeatureShareFabric, driver.Prop{Share: driver.ShareFabric}},
			{driver.FeatureRDMA, driver.Prop{RDMA: true}},
		} {
			if c.d.Supports(dev, f.feature) == nil {
				f.prop.Location = at(dev)
				props = append(props, f.prop)
			}
		}
		for _, p := range props {
			gran := valueOf(c.d.Granularity(p)).must(c, "ask for the granularity of %+v", p)
			c.created(c.createAs(gran, p), p)
		}
	}
	h := c.create(c.gran)
	c.release(h)
	for _, none := range []driver.Handle{0, h} {
		c.want(errOf(c.d.Properties(none)), "ask for the properties of no handle", driver.ErrInvalid)
	}
}
