package drivertest

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func addressRules() []Rule {
	return []Rule{
		{Name: "reserve-size", Says: "to reserve 0 bytes, or a size that is no multiple of the granularity, is ErrInvalid", Source: measured, run: reserveSize},
		{Name: "reserve-align", Says: "a range starts at a multiple of the granularity and of the requested power of two", Source: manual, run: reserveAlign},
		{Name: "reserve-apart", Says: "reserved ranges do not overlap", Source: manual, run: reserveApart},
		{Name: "reserve-exhausted", Says: "a range larger than the address space is ErrAddressSpace, never ErrOutOfMemory, and the next one works", Source: measured, run: reserveExhausted},
		{Name: "reserve-overflow", Says: "sizes from 2^63 up are refused", Source: contract(7), run: reserveOverflow},
		{Name: "free-exact", Says: "a range can be freed only whole, and only once", Source: manual, run: freeExact},
		{Name: "free-mapped", Says: "freeing a range with a mapping in it is ErrInvalid and changes nothing", Source: manual, run: freeMapped},
	}
}

func reserveSize(c *check) {
	for _, size := range []uint64{0, 1, c.gran - 1, c.gran + 1, c.gran + c.gran/2} {
		c.want(errOf(c.d.Reserve(size, 0)), fmt.Sprintf("reserve %d bytes", size), driver.ErrInvalid)
	}
}

func reserveAlign(c *check) {
	for _, align := range []uint64{0, c.gran, 2 * c.gran, 64 * c.gran, 1 << 30} {
		p := valueOf(c.d.Reserve(c.gran, align)).must(c, "reserve with alignment %d", align)
		c.held.reserved[p] = c.gran
		if p == 0 || uint64(p)%max(align, c.gran) != 0 {
			c.Errorf("aligned to %d: %v", align, p)
		}
	}
	c.want(errOf(c.d.Reserve(c.gran, 3*c.gran)), "alignment that is no power of two", driver.ErrInvalid)
}

func reserveApart(c *check) {
	for i := range 32 {
		size := c.gran * uint64(1+i%3)
		p := valueOf(c.d.Reserve(size, 0)).must(c, "reserve")
		for q, n := range c.held.reserved {
			if p < q+driver.Ptr(n) && q < p+driver.Ptr(size) {
				c.Fatalf("%d bytes at %v and %d bytes at %v overlap", size, p, n, q)
			}
		}
		c.held.reserved[p] = size
	}
}

func reserveExhausted(c *check) {
	for shift := 47; shift < 63; shift++ {
		c.want(errOf(c.d.Reserve(1<<shift, 0)), fmt.Sprintf("reserve 2^%d bytes", shift), driver.ErrAddressSpace)
	}
	c.reserve(c.gran)
}

func reserveOverflow(c *check) {
	for _, size := range []uint64{1 << 63, -c.gran, -c.gran / 2 &^ (c.gran - 1)} {
		c.want(errOf(c.d.Reserve(size, 0)), fmt.Sprintf("reserve %d bytes", size), driver.ErrAddressSpace, driver.ErrInvalid)
	}
	c.want(errOf(c.d.Reserve(c.gran, 1<<63)), "reserve with alignment 2^63", driver.ErrAddressSpace, driver.ErrInvalid)
}

func freeExact(c *check) {
	p := c.reserve(4 * c.gran)
	for _, f := range []struct {
		p    driver.Ptr
		size uint64
	}{
		{p, 0}, {p, c.gran}, {p, 5 * c.gran}, {p, 1 << 63}, {p, -c.gran},
		{c.chunk(p, 1), 3 * c.gran}, {c.chunk(p, 1), 4 * c.gran}, {p + 1, 4 * c.gran}, {0, 4 * c.gran},
	} {
		c.want(c.d.Free(f.p, f.size), fmt.Sprintf("free %d bytes at %v of %d at %v", f.size, f.p, 4*c.gran, p), driver.ErrInvalid)
	}
	h := c.create(c.gran)
	c.mapHandle(p, c.gran, h) // the range is still there
	c.unmap(p, c.gran)
	c.free(p)
	c.want(c.d.Free(p, 4*c.gran), "free again", driver.ErrInvalid)
}

func freeMapped(c *check) {
	p := c.reserve(2 * c.gran)
	h := c.create(c.gran)
	c.mapHandle(c.chunk(p, 1), c.gran, h)
	c.want(c.d.Free(p, 2*c.gran), "free with a chunk mapped", driver.ErrInvalid)
	c.access(c.chunk(p, 1), c.gran, grant(0, driver.AccessReadWrite))
	c.write(c.dev(0), c.chunk(p, 1), c.gran, 1)
}
