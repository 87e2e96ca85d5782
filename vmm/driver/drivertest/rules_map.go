package drivertest

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func mapRules() []Rule {
	return []Rule{
		{Name: "map-whole", Says: "a mapping is of the whole handle: any other size is ErrInvalid", Source: measured, run: mapWhole},
		{Name: "map-over", Says: "mapping over a mapping is ErrInvalid and leaves the old one", Source: manual, run: onDevice(mapOver)},
		{Name: "map-outside", Says: "mapping outside a reservation, across its start, or at an odd address is ErrInvalid", Source: manual, run: mapOutside},
		{Name: "map-unknown", Says: "mapping a handle that does not exist is ErrInvalid", Source: manual, run: mapUnknown},
		{Name: "map-anywhere", Says: "handles can be mapped anywhere in a range, in any order", Source: guide, run: onDevice(mapAnywhere)},
		{Name: "map-no-access", Says: "every new mapping starts without access, also that of a kept handle and beside an accessible one", Source: measured, run: onDevice(mapNoAccess)},
		{Name: "map-keeps-data", Says: "a kept handle keeps its data from one mapping to the next", Source: measured, run: onDevice(mapKeepsData)},
		{Name: "map-alias", Says: "one handle at two addresses shows the same bytes", Source: guide, run: onDevice(mapAlias)},
		{Name: "map-many", Says: "512 mappings take one SetAccess and one Unmap", Source: measured, run: onDevice(mapMany)},
		{Name: "unmap-part", Says: "unmapping part of a mapping is ErrInvalid and changes nothing", Source: measured, run: onDevice(unmapPart)},
		{Name: "unmap-several", Says: "one call unmaps several whole mappings side by side", Source: measured, run: onChunks(6, unmapSeveral)},
		{Name: "unmap-hole", Says: "unmapping across a hole is ErrInvalid and changes nothing, or removes the whole mappings there", Source: measured, run: onDevice(unmapHole)},
	}
}

func mapWhole(c *check) {
	p := c.reserve(8 * c.gran)
	h := c.create(2 * c.gran)
	for _, size := range []uint64{0, 1, c.gran, c.gran + 1, 3 * c.gran, 4 * c.gran, 1 << 63, -c.gran} {
		c.want(c.d.Map(p, size, h), fmt.Sprintf("map %d bytes of a handle of %d", size, 2*c.gran), driver.ErrInvalid)
	}
	c.mapHandle(p, 2*c.gran, h)
}

func mapOver(c *check, d driver.Device) {
	p := c.reserve(4 * c.gran)
	first, second := c.create(2*c.gran), c.create(2*c.gran)
	c.mapHandle(c.chunk(p, 1), 2*c.gran, first)
	c.access(c.chunk(p, 1), 2*c.gran, grant(0, driver.AccessReadWrite))
	c.write(d, c.chunk(p, 1), 2*c.gran, 5)
	for i := range 3 {
		c.want(c.d.Map(c.chunk(p, i), 2*c.gran, second), fmt.Sprintf("map over, from chunk %d", i), driver.ErrInvalid)
	}
	c.want(c.d.Map(c.chunk(p, 1), 2*c.gran, first), "map the same handle over itself", driver.ErrInvalid)
	c.reads(d, c.chunk(p, 1), 2*c.gran, 5)
}

func mapOutside(c *check) {
	p := c.reserve(2 * c.gran)
	one, two := c.create(c.gran), c.create(2*c.gran)
	gone := c.reserve(c.gran)
	c.free(gone)
	c.want(c.d.Map(p-driver.Ptr(c.gran), 2*c.gran, two), "map across the start", driver.ErrInvalid)
	c.want(c.d.Map(0, c.gran, one), "map at 0", driver.ErrInvalid)
	c.want(c.d.Map(-driver.Ptr(c.gran), c.gran, one), "map at the top of the address space", driver.ErrInvalid)
	c.want(c.d.Map(gone, c.gran, one), "map in a freed range", driver.ErrInvalid)
	c.want(c.d.Map(p+1, c.gran, one), "map at an odd address", driver.ErrInvalid)
	c.want(c.d.Map(p+driver.Ptr(c.gran/2), c.gran, one), "map at half a granule", driver.ErrInvalid)
}

func mapUnknown(c *check) {
	p := c.reserve(c.gran)
	c.want(c.d.Map(p, c.gran, 0), "map handle 0", driver.ErrInvalid)
}

func mapAnywhere(c *check, d driver.Device) {
	p := c.reserve(16 * c.gran)
	for _, i := range []int{15, 0, 7, 8, 3} {
		c.mapHandle(c.chunk(p, i), c.gran, c.create(c.gran))
		c.access(c.chunk(p, i), c.gran, grant(0, driver.AccessReadWrite))
		c.write(d, c.chunk(p, i), c.gran, byte(i))
	}
	for _, i := range []int{0, 3, 7, 8, 15} {
		c.reads(d, c.chunk(p, i), c.gran, byte(i))
	}
	c.unmap(c.chunk(p, 7), c.gran)
	c.mapHandle(c.chunk(p, 7), c.gran, c.create(c.gran))
	c.reads(d, c.chunk(p, 8), c.gran, 8)
}

func mapNoAccess(c *check, d driver.Device) {
	p := c.reserve(3 * c.gran)
	first, second := c.create(c.gran), c.create(c.gran)
	c.mapHandle(p, c.gran, first)
	c.noAccess(d, p)

	c.access(p, c.gran, grant(0, driver.AccessReadWrite))
	c.mapHandle(c.chunk(p, 1), c.gran, second)
	c.noAccess(d, c.chunk(p, 1))
	c.has(p, 0, driver.AccessReadWrite)
	buf := make([]byte, 2*c.gran)
	c.want(d.CopyOut(buf, p), "read from an accessible chunk into one that is not", driver.ErrInvalid)

	c.unmap(p, c.gran)
	c.mapHandle(p, c.gran, first)
	c.noAccess(d, p)
	c.mapHandle(c.chunk(p, 2), c.gran, first)
	c.noAccess(d, c.chunk(p, 2))
}

// noAccess checks that all work of device 0 at p is refused harmlessly.
func (c *check) noAccess(d driver.Device, p driver.Ptr) {
	c.Helper()
	c.has(p, 0, driver.AccessNone)
	buf := make([]byte, 64)
	c.want(d.CopyIn(p, buf), "write without access", driver.ErrInvalid)
	c.want(d.CopyOut(buf, p), "read without access", driver.ErrInvalid)
	c.want(d.Fill(p, 1, 1, 64, d.CopyStream()), "fill without access", driver.ErrInvalid)
	c.must(d.Sync(), "sync afterwards")
}

func mapKeepsData(c *check, d driver.Device) {
	p, hs := c.chunks(1)
	c.write(d, p, c.gran, 9)
	c.unmap(p, c.gran)
	q := c.reserve(2 * c.gran)
	c.mapHandle(c.chunk(q, 1), c.gran, hs[0])
	c.access(c.chunk(q, 1), c.gran, grant(0, driver.AccessReadWrite))
	c.reads(d, c.chunk(q, 1), c.gran, 9)
}

func mapAlias(c *check, d driver.Device) {
	p, hs := c.chunks(2)
	q := c.mapped(hs[1], driver.AccessReadWrite)
	c.write(d, c.chunk(p, 1), c.gran, 1)
	c.reads(d, q, c.gran, 1)
	c.write(d, q, c.gran, 2)
	c.reads(d, c.chunk(p, 1), c.gran, 2)
	c.unmap(c.chunk(p, 1), c.gran)
	c.reads(d, q, c.gran, 2)
}

func mapMany(c *check, d driver.Device) {
	const n = 512
	p, hs := c.chunks(n)
	for i := range n {
		c.has(c.chunk(p, i), 0, driver.AccessReadWrite)
	}
	c.write(d, c.chunk(p, n-1), c.gran, 1)
	c.unmap(p, n*c.gran)
	c.release(hs...)
	c.free(p)
}

func unmapPart(c *check, d driver.Device) {
	p := c.reserve(6 * c.gran)
	for _, i := range []int{0, 3} {
		c.mapHandle(c.chunk(p, i), 3*c.gran, c.create(3*c.gran))
	}
	c.access(p, 6*c.gran, grant(0, driver.AccessReadWrite))
	c.write(d, p, 6*c.gran, 6)
	for _, part := range []struct{ from, n int }{{0, 1}, {1, 1}, {2, 1}, {1, 2}, {0, 2}, {0, 4}, {2, 4}, {1, 5}, {2, 2}} {
		err := c.d.Unmap(c.chunk(p, part.from), uint64(part.n)*c.gran)
		c.want(err, fmt.Sprintf("unmap %d granules from %d of two mappings of 3", part.n, part.from), driver.ErrInvalid)
	}
	c.want(c.d.Unmap(p, 3*c.gran-1), "unmap an odd size", driver.ErrInvalid)
	c.want(c.d.Unmap(p+1, 3*c.gran), "unmap at an odd address", driver.ErrInvalid)
	c.want(c.d.Unmap(p, 0), "unmap nothing", driver.ErrInvalid)
	c.reads(d, p, 6*c.gran, 6)
	c.write(d, p, 6*c.gran, 7)
}

func unmapSeveral(c *check, d driver.Device, p driver.Ptr) {
	c.write(d, p, 6*c.gran, 1)
	c.unmap(c.chunk(p, 1), 4*c.gran)
	c.reads(d, p, c.gran, 1)
	c.reads(d, c.chunk(p, 5), c.gran, 1)
	buf := make([]byte, 1)
	for i := 1; i < 5; i++ {
		c.want(d.CopyOut(buf, c.chunk(p, i)), fmt.Sprintf("read unmapped chunk %d", i), driver.ErrInvalid)
	}
}

func unmapHole(c *check, d driver.Device) {
	for what, span := range map[string]struct{ from, n, first, last int }{
		"a hole": {1, 1, 1, 1}, "across a hole": {0, 3, 0, 3}, "into a hole": {0, 2, 0, 1}, "out of a hole": {1, 2, 2, 3},
	} {
		p, _ := c.chunks(4)
		c.write(d, p, 4*c.gran, 1)
		c.unmap(c.chunk(p, 1), c.gran)
		err := c.d.Unmap(c.chunk(p, span.from), uint64(span.n)*c.gran)
		if err != nil {
			c.want(err, "unmap "+what, driver.ErrInvalid)
		} else {
			c.unbalanced = true
		}
		// Either all mappings are as before, or the whole mappings in the span are gone.
		for i := range 4 {
			switch gone := err == nil && i >= span.first && i < span.last; {
			case i == 1:
			case gone:
				c.want(d.CopyOut(make([]byte, 1), c.chunk(p, i)), fmt.Sprintf("read chunk %d after unmapping %s", i, what), driver.ErrInvalid)
				delete(c.held.mapped, c.chunk(p, i))
			default:
				c.reads(d, c.chunk(p, i), c.gran, 1)
			}
		}
	}
	p, _ := c.chunks(1)
	c.want(c.d.Unmap(p, -c.gran), "unmap an overflowing span", driver.ErrInvalid)
	c.want(c.d.Unmap(0, c.gran), "unmap at 0", driver.ErrInvalid)
}
