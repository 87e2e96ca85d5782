package drivertest

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func accessRules() []Rule {
	readOnly := []driver.Feature{driver.FeatureReadOnlyMap}
	return []Rule{
		{Name: "access-last", Says: "Access returns what SetAccess set last, throughout the span", Source: manual, run: accessLast},
		{Name: "access-twice", Says: "of two entries for one device in one SetAccess the last one counts", Source: measured, run: accessTwice},
		{Name: "access-several", Says: "one SetAccess spans many mappings", Source: measured, run: onDevice(accessSeveral)},
		{Name: "access-hole", Says: "access on what is not mapped, or on a span that begins or ends in a hole, is ErrInvalid and changes nothing", Source: measured, run: accessHole},
		{Name: "access-refused", Says: "a grant to LocationOwner, to a device that does not exist, or of an unknown level is refused, with every grant beside it", Source: seam, run: accessRefused},
		{Name: "access-host", Says: "a host node cannot have access to device memory", Source: measured, run: accessHost},
		{Name: "access-none", Says: "without access copies and fills are refused, harmlessly, and access can be granted again", Source: seam, run: onChunks(2, accessNone)},
		{Name: "read-only", Says: "copies and fills into read-only memory are ErrInvalid and harmless", Source: measured, needs: readOnly, run: onChunks(2, readOnlyMapping)},
		{Name: "read-only-alias", Says: "one handle can be read-write at one address and read-only at another", Source: measured, needs: readOnly, run: onDevice(readOnlyAlias)},
	}
}

func accessLast(c *check) {
	p := c.reserve(3 * c.gran)
	c.mapHandle(p, c.gran, c.create(c.gran))
	c.mapHandle(c.chunk(p, 1), 2*c.gran, c.create(2*c.gran))
	c.access(p, 3*c.gran, grant(0, driver.AccessReadWrite))
	levels := []driver.Access{driver.AccessReadWrite, driver.AccessNone, driver.AccessReadWrite}
	if c.d.Supports(0, driver.FeatureReadOnlyMap) == nil {
		levels = append(levels, driver.AccessRead, driver.AccessNone, driver.AccessRead)
	}
	for _, a := range levels {
		c.access(c.chunk(p, 1), 2*c.gran, grant(0, a))
		c.has(c.chunk(p, 1), 0, a)
		c.has(c.chunk(p, 2), 0, a)
		c.has(p, 0, driver.AccessReadWrite)
	}
}

func accessTwice(c *check) {
	p := c.placed(c.create(c.gran))
	c.access(p, c.gran, grant(0, driver.AccessReadWrite), grant(0, driver.AccessRead))
	c.has(p, 0, driver.AccessRead)
	c.access(p, c.gran, grant(0, driver.AccessRead), grant(0, driver.AccessReadWrite))
	c.has(p, 0, driver.AccessReadWrite)
}

func accessSeveral(c *check, d driver.Device) {
	p := c.reserve(5 * c.gran)
	for _, m := range []struct{ at, n int }{{0, 2}, {2, 1}, {3, 2}} {
		size := uint64(m.n) * c.gran
		c.mapHandle(c.chunk(p, m.at), size, c.create(size))
	}
	c.access(p, 5*c.gran, grant(0, driver.AccessReadWrite))
	for i := range 5 {
		c.has(c.chunk(p, i), 0, driver.AccessReadWrite)
	}
	c.write(d, p, 5*c.gran, 1)
	c.reads(d, p, 5*c.gran, 1)
}

func accessHole(c *check) {
	p := c.reserve(4 * c.gran)
	for _, i := range []int{0, 2} {
		c.mapHandle(c.chunk(p, i), c.gran, c.create(c.gran))
	}
	grants := []driver.Grant{grant(0, driver.AccessReadWrite)}
	for _, span := range []struct{ from, n int }{{1, 1}, {0, 2}, {1, 2}, {2, 2}, {2, 3}} {
		err := c.d.SetAccess(c.chunk(p, span.from), uint64(span.n)*c.gran, grants)
		c.want(err, fmt.Sprintf("access for %d chunks from %d, where 1 and 3 are holes", span.n, span.from), driver.ErrInvalid)
	}
	c.want(c.d.SetAccess(p, 0, grants), "access for nothing", driver.ErrInvalid)
	c.want(c.d.SetAccess(p, -c.gran, grants), "access for an overflowing span", driver.ErrInvalid)
	c.want(c.d.SetAccess(0, c.gran, grants), "access at 0", driver.ErrInvalid)
	c.has(p, 0, driver.AccessNone)
	c.has(c.chunk(p, 2), 0, driver.AccessNone)
	c.want(errOf(c.d.Access(c.chunk(p, 1), at(0))), "ask for access in a hole", driver.ErrInvalid)
	c.want(errOf(c.d.Access(0, at(0))), "ask for access at 0", driver.ErrInvalid)
}

func accessRefused(c *check) {
	p := c.placed(c.create(c.gran))
	good := grant(0, driver.AccessReadWrite)
	for _, bad := range []struct {
		grant driver.Grant
		kind  error
	}{
		{driver.Grant{Access: driver.AccessReadWrite}, driver.ErrInvalid},
		{driver.Grant{To: driver.Location{Kind: 99}, Access: driver.AccessReadWrite}, driver.ErrInvalid},
		{grant(0, 99), driver.ErrInvalid},
		{grant(-1, driver.AccessReadWrite), driver.ErrNoDevice},
		{grant(len(c.info), driver.AccessReadWrite), driver.ErrNoDevice},
	} {
		c.want(c.d.SetAccess(p, c.gran, []driver.Grant{bad.grant}), fmt.Sprintf("grant %+v", bad.grant), bad.kind)
		c.want(c.d.SetAccess(p, c.gran, []driver.Grant{good, bad.grant}), fmt.Sprintf("grant %+v after a good one", bad.grant), bad.kind)
		c.has(p, 0, driver.AccessNone)
	}
}

func accessHost(c *check) {
	p := c.placed(c.create(c.gran))
	host := driver.Grant{To: driver.Location{Kind: driver.LocationHostNUMA}, Access: driver.AccessReadWrite}
	c.want(c.d.SetAccess(p, c.gran, []driver.Grant{host}), "grant to a host node", driver.ErrNotSupported)
}

func accessNone(c *check, d driver.Device, p driver.Ptr) {
	c.write(d, p, 2*c.gran, 1)
	c.access(p, c.gran, grant(0, driver.AccessNone))
	c.noAccess(d, p)
	c.reads(d, c.chunk(p, 1), c.gran, 1)
	c.access(p, c.gran, grant(0, driver.AccessReadWrite))
	c.reads(d, p, 2*c.gran, 1)
}

func readOnlyMapping(c *check, d driver.Device, p driver.Ptr) {
	c.write(d, p, 2*c.gran, 1)
	c.access(p, c.gran, grant(0, driver.AccessRead))
	c.refusesWrites(d, p)
	c.reads(d, p, c.gran, 1)
	c.must(d.Copy(c.chunk(p, 1), p, c.gran, d.CopyStream()), "copy out of it")
	c.must(d.Sync(), "sync")
	c.want(d.Copy(p, c.chunk(p, 1), c.gran, d.CopyStream()), "copy into it", driver.ErrInvalid)
	buf := make([]byte, 64)
	c.want(d.CopyIn(c.chunk(p, 1)-32, buf), "write that starts in it", driver.ErrInvalid)
	c.reads(d, p, 2*c.gran, 1)
}

// refusesWrites checks that writes of a device at p are refused harmlessly.
func (c *check) refusesWrites(d driver.Device, p driver.Ptr) {
	c.Helper()
	c.want(d.CopyIn(p, make([]byte, 64)), "write without the right to", driver.ErrInvalid)
	c.want(d.Fill(p, 1, 4, 16, d.CopyStream()), "fill without the right to", driver.ErrInvalid)
	c.must(d.Sync(), "sync afterwards")
}

func readOnlyAlias(c *check, d driver.Device) {
	p, hs := c.chunks(1)
	q := c.mapped(hs[0], driver.AccessRead)
	c.write(d, p, c.gran, 1)
	c.reads(d, q, c.gran, 1)
	c.refusesWrites(d, q)
	c.write(d, p, c.gran, 2)
	c.reads(d, q, c.gran, 2)
}
