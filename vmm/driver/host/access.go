//go:build linux

package host

import (
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// SetAccess writes the ledger of the mappings in [p, p+size) and lets the CPU
// do what any device may.
func (d *Driver) SetAccess(p driver.Ptr, size uint64, who []driver.Grant) error {
	const verb = "SetAccess"
	if err := d.whole(verb, p, size); err != nil {
		return err
	}
	if len(who) == 0 {
		return rule(verb, driver.ErrInvalid, "no grant")
	}
	for _, g := range who {
		if err := d.checkGrant(verb, g); err != nil {
			return err
		}
	}
	d.mem.Lock()
	defer d.unlock()
	r, i, j, err := d.run(verb, p, size)
	if err != nil {
		return err
	}
	next := d.rows(j - i)
	for k, m := range r.maps[i:j] {
		row := next.row(k)
		copy(row, m.access)
		for _, g := range who {
			if g.Access != driver.AccessNone && !d.reaches(g.To.ID, m.memory.home.ordinal) {
				return rule(verb, driver.ErrInvalid, "host:%d cannot reach memory of host:%d", g.To.ID, m.memory.home.ordinal)
			}
			row[g.To.ID] = g.Access
		}
		if union(row) == driver.AccessReadWrite && !m.writable {
			return rule(verb, driver.ErrPermission, "the memory at %#x was shared read-only", m.base)
		}
	}

	// Before the page table changes, or what runs would meet the change and
	// end the process. Should the kernel then refuse, the access is as before,
	// but who had work on the memory has lost the device all the same.
	here := within(uint64(p), uint64(p)+size)
	d.poison(func(u *unit, s span) bool {
		if !here(u, s) {
			return false
		}
		for _, g := range slices.Backward(who) { // the last one for a device counts
			if g.To.ID == u.ordinal {
				return g.Access < s.need
			}
		}
		return false
	})
	if err := protect(r.maps[i:j], next); err != nil {
		return d.fail("mprotect", driver.ErrOutOfMemory, err)
	}
	for k, m := range r.maps[i:j] {
		copy(m.access, next.row(k))
	}
	return nil
}

func (d *Driver) checkGrant(verb string, g driver.Grant) error {
	switch {
	case g.Access > driver.AccessReadWrite:
		return rule(verb, driver.ErrInvalid, "%v", g.Access)
	case g.To.Kind == driver.LocationHostNUMA:
		return rule(verb, driver.ErrNotSupported, "access for %v", g.To)
	case g.To.Kind != driver.LocationDevice:
		return rule(verb, driver.ErrInvalid, "access for %v", g.To)
	}
	// A lost device may still be shut out: memory can be given back.
	if g.Access == driver.AccessNone && g.To.ID >= 0 && g.To.ID < len(d.units) {
		return nil
	}
	_, err := d.unit(verb, g.To.ID)
	return err
}

// rows is what each device may do with each of some mappings, in one piece.
type rows struct {
	access  []driver.Access
	devices int
}

func (d *Driver) rows(mappings int) rows {
	return rows{make([]driver.Access, mappings*len(d.units)), len(d.units)}
}

func (r rows) row(i int) []driver.Access { return r.access[i*r.devices:][:r.devices] }

// union is what any device may do: what the one page table has to allow.
func union(row []driver.Access) driver.Access { return slices.Max(row) }

// protect brings the page table from now to next, in one call for each run of
// equals, or changes nothing.
func protect(now []*mapping, next rows) error {
	for i := 0; i < len(now); {
		was, will := union(now[i].access), union(next.row(i))
		j := i + 1
		for j < len(now) && union(next.row(j)) == will && union(now[j].access) == was {
			j++
		}
		if will != was {
			if err := mprotect(now[i].base, now[j-1].end()-now[i].base, prot(will)); err != nil {
				for k := range j {
					_ = mprotect(now[k].base, now[k].size, prot(union(now[k].access)))
				}
				return err
			}
		}
		i = j
	}
	return nil
}

func prot(a driver.Access) int {
	switch a {
	case driver.AccessRead:
		return unix.PROT_READ
	case driver.AccessReadWrite:
		return unix.PROT_READ | unix.PROT_WRITE
	}
	return unix.PROT_NONE
}

// Access reads the ledger.
func (d *Driver) Access(p driver.Ptr, who driver.Location) (driver.Access, error) {
	const verb = "Access"
	if err := d.whole(verb, p, d.granularity); err != nil {
		return driver.AccessNone, err
	}
	if err := d.checkGrant(verb, driver.Grant{To: who, Access: driver.AccessRead}); err != nil {
		return driver.AccessNone, err
	}
	d.mem.RLock()
	defer d.mem.RUnlock()
	if r := d.region(uint64(p)); r != nil && r.block == nil {
		if m := r.over(uint64(p), 1); m != nil {
			return m[0].access[who.ID], nil
		}
	}
	return driver.AccessNone, rule(verb, driver.ErrInvalid, "nothing is mapped at %v", p)
}

// reach says whether a device may use n bytes at p. Plain and pinned memory is
// for every device. The caller holds mem.
func (d *Driver) reach(verb string, dev int, p driver.Ptr, n uint64, need driver.Access) error {
	r := d.region(uint64(p))
	if r == nil || n > r.end()-uint64(p) {
		return rule(verb, driver.ErrInvalid, "%d bytes at %v are not memory of this driver", n, p)
	}
	if r.block != nil {
		if n > r.block.n-(uint64(p)-r.base) {
			return rule(verb, driver.ErrInvalid, "%d bytes at %v pass the end of the block", n, p)
		}
		return nil
	}
	all := r.over(uint64(p), n)
	if all == nil {
		return rule(verb, driver.ErrInvalid, "%d bytes at %v are not mapped throughout", n, p)
	}
	for _, m := range all {
		if m.access[dev] < need {
			return rule(verb, driver.ErrInvalid, "host:%d has access %v at %#x and needs %v", dev, m.access[dev], m.base, need)
		}
	}
	return nil
}
