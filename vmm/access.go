package vmm

import (
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// grant is what one device may do with all of a reservation, now and later.
type grant struct {
	dev    *Device
	access Access
}

// grantKey lists a grant among what the granted device has open.
type grantKey struct {
	r   *Reservation
	dev *Device
}

// Grant gives devices access to all that is mapped and all that will be. Peers
// have no other way to reach mapped memory: enabling peer access between
// contexts does nothing for it. Devices of the same driver only; a pair without
// a path is ErrNotSupported, and what is refused for one device names the pair,
// as a *PairError. Giving less than before takes access away, and so waits as
// Unmap does. It completes or changes nothing. While a grant stands, the device
// granted answers ErrBusy to Close.
func (r *Reservation) Grant(a Access, devs ...*Device) error {
	if r == nil || a != Read && a != ReadWrite {
		return r.fail("grant "+a.String(), 0, 0, fmt.Errorf("%w: no reservation, or neither read nor read-write", ErrInvalid))
	}
	return r.fail("grant "+a.String(), 0, r.size, r.allow(a, devs))
}

// Revoke takes access away from devices, now and for what will be mapped, after
// waiting as Unmap does. Revoking what was not granted does nothing; the owner
// cannot be revoked. It completes or changes nothing.
func (r *Reservation) Revoke(devs ...*Device) error {
	if r == nil {
		return r.fail("revoke", 0, 0, fmt.Errorf("%w: no reservation", ErrInvalid))
	}
	return r.fail("revoke", 0, r.size, r.allow(None, devs))
}

// allow sets the access of devs to a.
func (r *Reservation) allow(a Access, devs []*Device) error {
	if err := r.eligible(a, devs); err != nil {
		return err
	}
	done, err := r.decide(a, devs)
	r.settle(done)
	return err
}

// leaver is a device that keeps no more than left of its access, or has no more
// for certain.
type leaver struct {
	*port
	left Access
}

// leave marks devices that may be about to lose access: none of their copies is
// under way when it returns, and none that needs more begins before stay.
func (r *Reservation) leave(a Access, devs []*Device) (marked []*leaver) {
	if a == ReadWrite {
		return nil // nobody loses any
	}
	for _, d := range devs {
		marked = append(marked, &leaver{d.port, a})
	}
	r.use.Lock()
	defer r.use.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving = append(r.leaving, marked...)
	return marked
}

// stay undoes leave.
func (r *Reservation) stay(marked []*leaver) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving = slices.DeleteFunc(r.leaving, func(l *leaver) bool { return slices.Contains(marked, l) })
}

// eligible checks devs before anything is changed or asked of the driver twice.
func (r *Reservation) eligible(a Access, devs []*Device) error {
	if a == ReadWrite && r.readOnly {
		return fmt.Errorf("%w: the reservation is read-only", ErrInvalid)
	}
	if len(devs) == 0 {
		return fmt.Errorf("%w: no device", ErrInvalid)
	}
	for i, d := range devs {
		if err := r.barred(a, d, reaches); err != nil {
			return err
		}
		if slices.ContainsFunc(devs[:i], func(e *Device) bool { return e.port == d.port }) {
			return pairFail(d, r.dev, fmt.Errorf("%w: %v is named twice", ErrInvalid, d))
		}
	}
	return nil
}

// barred says why d cannot have access a; reach is how to find out about a path.
func (r *Reservation) barred(a Access, d *Device, reach func(from, to *Device) error) error {
	err := d.live()
	switch {
	case err != nil:
	case d.port.sys != r.dev.port.sys:
		err = fmt.Errorf("%w: %v is of another driver than %v", ErrInvalid, d, r.dev)
	case d.port == r.dev.port && a == None:
		err = fmt.Errorf("%w: %v owns the memory and cannot be revoked", ErrInvalid, d)
	case d.port != r.dev.port && a != None:
		err = reach(d, r.dev)
	}
	return pairFail(d, r.dev, err)
}

// reaches is nil if there is a path from one device to the other's memory.
func reaches(from, to *Device) error {
	ok, err := from.drv().CanAccessPeer(from.port.n, to.port.n)
	if err == nil && !ok {
		err = fmt.Errorf("%w: no path between them", ErrNotSupported)
	}
	return err
}

// granted gives what the device may do now. It needs r.layout or r.mu.
func (r *Reservation) granted(d *Device) Access {
	for _, g := range r.grants {
		if g.dev.port == d.port {
			return g.access
		}
	}
	return None
}

// narrows says whether setting devs to a takes access away. It needs r.layout or r.mu.
func (r *Reservation) narrows(a Access, devs []*Device) bool {
	return slices.ContainsFunc(devs, func(d *Device) bool { return a < r.granted(d) })
}

// regrant tells the driver, then the books. It needs r.layout.
func (r *Reservation) regrant(a Access, devs []*Device) error {
	after, before := r.changes(a, devs)
	if len(after) == 0 {
		return nil
	}
	var lent []*Device
	if a != None {
		var err error
		if lent, err = r.lend(devs); err != nil {
			return err
		}
	}
	drv := r.dev.drv()
	tried := 0
	err := r.runs(func(_, j int, off, size uint64) error {
		tried = j
		return drv.SetAccess(r.ptr+Ptr(off), size, after)
	})
	if err != nil {
		for _, d := range lent {
			d.untrack(grantKey{r, d})
		}
		return r.restore(tried, before, devs, err)
	}
	if a > None {
		r.widened++
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record(a, devs)
	r.straightened()
	return nil
}

// changes is what to tell the driver so that devs have access a, and what to
// tell it to undo that. Where an earlier undo failed the driver may have
// anything, so it is told everything.
func (r *Reservation) changes(a Access, devs []*Device) (after, before []driver.Grant) {
	crooked := r.crooked()
	if crooked {
		for _, p := range r.strays {
			out := driver.Grant{To: Location{Kind: OnDevice, ID: p.n}, Access: None}
			after, before = append(after, out), append(before, out)
		}
		after, before = append(after, r.who...), append(before, r.who...)
	}
	for _, d := range devs {
		if now := r.granted(d); now != a || crooked {
			after = append(after, driver.Grant{To: d.home(), Access: a}) // the last one for a device counts
			before = append(before, driver.Grant{To: d.home(), Access: now})
		}
	}
	return after, before
}

// crooked says whether the driver may have other access than the books.
func (r *Reservation) crooked() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.strays) > 0 || slices.ContainsFunc(r.slots, func(s slot) bool { return s.state != mapped && s.stuck != nil })
}

// straightened notes that the driver has what the books have again. It needs r.mu.
func (r *Reservation) straightened() {
	r.strays = nil
	for i := range r.slots {
		if r.slots[i].state != mapped {
			r.unstick(&r.slots[i])
		}
	}
}

// lend lists the grant with each device that has none yet, so that it stays
// open as long as the grant stands.
func (r *Reservation) lend(devs []*Device) (lent []*Device, err error) {
	for _, d := range devs {
		if r.granted(d) != None {
			continue
		}
		if err := d.track(grantKey{r, d}, "grant"); err != nil {
			for _, d := range lent {
				d.untrack(grantKey{r, d})
			}
			return nil, pairFail(d, r.dev, err)
		}
		lent = append(lent, d)
	}
	return lent, nil
}

// restore undoes SetAccess on the first n slots, the failed run included, which
// may be half done. Where that fails too the slots are quarantined, and devs
// are waited for as if they still had access.
func (r *Reservation) restore(n int, before []driver.Grant, devs []*Device, why error) error {
	drv := r.dev.drv()
	_ = r.runs(func(i, j int, off, size uint64) error {
		if i >= n {
			return nil
		}
		if err := drv.SetAccess(r.ptr+Ptr(off), size, before); err != nil {
			why = also(why, "and setting access back", err)
			r.mu.Lock()
			defer r.mu.Unlock()
			for k := i; k < j; k++ {
				r.stick(&r.slots[k], why)
			}
			for _, d := range devs {
				if !slices.Contains(r.strays, d.port) {
					r.strays = append(r.strays, d.port)
				}
			}
		}
		return nil
	})
	return why
}

// record enters devs with access a into the books. It needs r.layout and r.mu.
func (r *Reservation) record(a Access, devs []*Device) {
	grants := slices.Clone(r.grants)
	for _, d := range devs {
		i := slices.IndexFunc(grants, func(g grant) bool { return g.dev.port == d.port })
		switch {
		case i < 0 && a != None:
			grants = append(grants, grant{dev: d, access: a})
		case i > 0 && a == None:
			grants[i].dev.untrack(grantKey{r, grants[i].dev})
			grants = slices.Delete(grants, i, i+1)
		case i >= 0:
			grants[i].access = a
		}
	}
	r.setWho(grants)
}

// setWho keeps the grants also in the driver's form, so that a Map allocates nothing.
func (r *Reservation) setWho(grants []grant) {
	who := make([]driver.Grant, len(grants))
	for i, g := range grants {
		who[i] = driver.Grant{To: g.dev.home(), Access: g.access}
	}
	r.grants, r.who = grants, who
}
