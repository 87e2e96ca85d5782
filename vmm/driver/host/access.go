//go:build linux

package host

import (
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// SetAccess sets the access of each mapping in [p, p+size). The page table then
// allows what any device may do.
func (d *Driver) SetAccess(p driver.Ptr, size uint64, who []driver.Grant) error {
	const verb = "SetAccess"
	if err := d.checkSpan(verb, p, size); err != nil {
		return err
	}
	if len(who) == 0 {
		return refuse(verb, driver.ErrInvalid, "no grant")
	}
	for _, g := range who {
		if err := d.checkGrant(verb, g); err != nil {
			return err
		}
	}
	d.memMu.Lock()
	defer d.unlockAndClose()
	r, i, j, err := d.wholeMappings(verb, p, size)
	if err != nil {
		return err
	}
	// Every mapping is checked before anything changes.
	n := len(d.states)
	next := make([]driver.Access, n*(j-i)) // a row for each mapping
	then := make([]driver.Access, j-i)
	for k, m := range r.maps[i:j] {
		row := next[k*n:][:n]
		copy(row, m.access)
		for _, g := range who {
			if g.Access != driver.AccessNone && !d.canReach(g.To.ID, m.memory.state.ordinal) {
				return refuse(verb, driver.ErrInvalid, "host:%d cannot reach memory of host:%d", g.To.ID, m.memory.state.ordinal)
			}
			row[g.To.ID] = g.Access
		}
		then[k] = slices.Max(row)
		if then[k] == driver.AccessReadWrite && !m.writable {
			return refuse(verb, driver.ErrPermission, "the memory at %#x was shared read-only", m.base)
		}
	}

	peak, more := r.bordersOfAccess(i, then)
	return d.changeMappings(verb, peak, more, purposeOf(who), func() error {
		// Before the page table changes, because running work would fault on it and end
		// the process. If the kernel then refuses, the access is as before, but work on
		// the memory has lost the devices all the same.
		d.loseIfUsed(narrowed(uint64(p), uint64(p)+size, who))
		if err := protect(r.maps[i:j], then); err != nil {
			return d.fail("mprotect", driver.ErrOutOfMemory, err)
		}
		for k, m := range r.maps[i:j] {
			copy(m.access, next[k*n:])
			m.allowed = then[k]
		}
		return nil
	})
}

// purposeOf is forLess if the grants only take access away.
func purposeOf(who []driver.Grant) purpose {
	for _, g := range who {
		if g.Access != driver.AccessNone {
			return forMore
		}
	}
	return forLess
}

// narrowed reports whether an op's span has bytes in [from, to) and its device may do less
// there after the grants than the op needs.
func narrowed(from, to uint64, who []driver.Grant) func(*deviceState, span) bool {
	here := within(from, to)
	return func(u *deviceState, s span) bool {
		if !here(u, s) {
			return false
		}
		for _, g := range slices.Backward(who) { // the last one for a device counts
			if g.To.ID == u.ordinal {
				return g.Access < s.need
			}
		}
		return false
	}
}

func (d *Driver) checkGrant(verb string, g driver.Grant) error {
	switch {
	case g.Access > driver.AccessReadWrite:
		return refuse(verb, driver.ErrInvalid, "%v", g.Access)
	case g.To.Kind == driver.LocationHostNUMA:
		return refuse(verb, driver.ErrNotSupported, "access for %v", g.To)
	case g.To.Kind != driver.LocationDevice:
		return refuse(verb, driver.ErrInvalid, "access for %v", g.To)
	}
	// Access may be taken away from a lost device, so that memory can be freed.
	if g.Access == driver.AccessNone && g.To.ID >= 0 && g.To.ID < len(d.states) {
		return nil
	}
	_, err := d.state(verb, g.To.ID)
	return err
}

// protect has the page table allow then, or changes nothing.
func protect(now []*mapping, then []driver.Access) error {
	return stretches(now, then, func(from, to int) error {
		if then[from] == now[from].allowed {
			return nil
		}
		err := mprotect(now[from].base, now[to-1].end()-now[from].base, prot(then[from]))
		if err != nil {
			// What is done already, and what this call may have done in part.
			for _, m := range now[:to] {
				_ = mprotect(m.base, m.size, prot(m.allowed))
			}
		}
		return err
	})
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

// Access is the access that SetAccess set last.
func (d *Driver) Access(p driver.Ptr, who driver.Location) (driver.Access, error) {
	const verb = "Access"
	if err := d.checkSpan(verb, p, d.granularity); err != nil {
		return driver.AccessNone, err
	}
	if err := d.checkGrant(verb, driver.Grant{To: who, Access: driver.AccessRead}); err != nil {
		return driver.AccessNone, err
	}
	d.memMu.RLock()
	defer d.memMu.RUnlock()
	if r := d.region(uint64(p)); r != nil && r.block == nil {
		if m := r.covering(uint64(p), 1); m != nil {
			return m[0].access[who.ID], nil
		}
	}
	return driver.AccessNone, refuse(verb, driver.ErrInvalid, "nothing is mapped at %v", p)
}

// accessibleUpTo is the end of the memory from s.from on that the device may use without a
// hole. The span has been checked. The caller holds memMu.
func (d *Driver) accessibleUpTo(dev int, s span) uint64 {
	r := d.region(s.from)
	if r.block != nil {
		return r.base + r.block.n
	}
	i, exact := r.index(s.from)
	if !exact {
		i--
	}
	end := r.maps[i].end()
	for _, m := range r.maps[i+1:] {
		if m.base != end || m.access[dev] < s.need {
			break
		}
		end = m.end()
	}
	return end
}

// checkAccess checks that a device may use n bytes at p. Every device may use plain
// and pinned memory of no pool. The caller holds memMu.
func (d *Driver) checkAccess(verb string, dev int, p driver.Ptr, n uint64, need driver.Access) error {
	r := d.region(uint64(p))
	if r == nil || n > r.end()-uint64(p) {
		return refuse(verb, driver.ErrInvalid, "%d bytes at %v are not memory of this driver", n, p)
	}
	if r.block != nil {
		if n > r.block.n-(uint64(p)-r.base) {
			return refuse(verb, driver.ErrInvalid, "%d bytes at %v pass the end of the block", n, p)
		}
		if of := r.block.pool; of != nil && of.access[dev] < need {
			return refuse(verb, driver.ErrInvalid, "host:%d has access %v to the pool of %v and needs %v", dev, of.access[dev], p, need)
		}
		return nil
	}
	all := r.covering(uint64(p), n)
	if all == nil {
		return refuse(verb, driver.ErrInvalid, "%d bytes at %v are not mapped throughout", n, p)
	}
	for _, m := range all {
		if m.access[dev] < need {
			return refuse(verb, driver.ErrInvalid, "host:%d has access %v at %#x and needs %v", dev, m.access[dev], m.base, need)
		}
	}
	return nil
}
