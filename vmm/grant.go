package vmm

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/grants"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// grant is what one device may do with all of a reservation, now and later.
type grant = grants.Grant[*deviceState, *Device]

// grant is access of the device.
func (d *Device) grant(a Access) grant { return grant{Dev: d.state, Holder: d, Access: a} }

// grantKey lists a grant among what the granted device has open.
type grantKey struct{ r *Reservation }

// Grant gives devices access to all memory mapped now or later. Peers have no other way to reach mapped
// memory: enabling peer access between contexts does nothing for it. All devices must be of the same
// driver. Grant returns ErrNotSupported for a pair without a path; errors for one device name the pair,
// as a *PairError. A Grant of less than before takes access away, and so waits as Unmap does. Given less,
// the owner cannot write either. Grant completes or changes nothing. While a grant stands, Close of the
// device granted returns ErrBusy.
//
// If a step fails and its undo fails too, the driver may have either access. Stats then counts the memory
// as quarantined. Copies and launches of those devices that would use it return ErrBusy until the next
// Grant, Revoke, EnablePeers or Trim has waited as Unmap does and set the access anew.
func (r *Reservation) Grant(a Access, devs ...*Device) error {
	if r == nil || r.dev == nil || a != AccessRead && a != AccessReadWrite {
		return r.wrap("grant "+a.String(), 0, 0, fmt.Errorf("%w: no reservation, or neither read nor read-write", ErrInvalid))
	}
	return r.wrap("grant "+a.String(), 0, r.size, r.setGrants(a, devs))
}

// Revoke takes away devices' access to memory mapped now or later, after waiting as Unmap does. Revoking
// access that was not granted does nothing; the owner cannot be revoked. On error nothing has changed.
func (r *Reservation) Revoke(devs ...*Device) error {
	if r == nil || r.dev == nil {
		return r.wrap("revoke", 0, 0, fmt.Errorf("%w: no reservation", ErrInvalid))
	}
	return r.wrap("revoke", 0, r.size, r.setGrants(AccessNone, devs))
}

// Access is what d may do with the memory, as granted: AccessNone for a device that
// was granted nothing, and once the reservation is closed. It reads the grants on record and
// makes no driver call; driver.Driver.Access asks the driver.
func (r *Reservation) Access(d *Device) Access {
	if r == nil || r.dev == nil || d == nil {
		return AccessNone
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase.Load() == phaseClosed {
		return AccessNone
	}
	return r.grants.Access(d.state)
}

// setGrants sets the access of devs to a.
func (r *Reservation) setGrants(a Access, devs []*Device) error {
	to, err := r.checkDevices(a, devs)
	if err != nil {
		return err
	}
	if err := r.checkOpen(); err != nil {
		return err // without waiting for the Close or Sleep that is under way
	}
	r.grantMu.Lock()
	defer r.grantMu.Unlock()
	change, err := r.changeAccessLocked(to)
	if err == nil {
		change.finish()
	}
	return err
}

// checkDevices checks devs before anything is changed or asked of the driver twice, and returns their
// new grants.
func (r *Reservation) checkDevices(a Access, devs []*Device) (to []grant, err error) {
	if err := r.checkAccess(a); err != nil {
		return nil, err
	}
	if len(devs) == 0 {
		return nil, fmt.Errorf("%w: no device", ErrInvalid)
	}
	for i, d := range devs {
		if err := r.checkGrant(a, d, checkPath); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(devs[:i], func(e *Device) bool { return e.state == d.state }) {
			return nil, pairFail(d, r.dev, fmt.Errorf("%w: %v is named twice", ErrInvalid, d))
		}
		to = append(to, d.grant(a))
	}
	return to, nil
}

// checkAccess says why no device can have access a.
func (r *Reservation) checkAccess(a Access) error {
	if a > r.grants.Most {
		return fmt.Errorf("%w: the reservation is read-only", ErrInvalid)
	}
	return nil
}

// checkGrant says why d cannot have access a; reach is how to find out about a path.
func (r *Reservation) checkGrant(a Access, d *Device, reach func(from, to *Device) error) error {
	err := d.checkOpen()
	switch {
	case err != nil:
	case d.state.parent != r.dev.state.parent:
		err = fmt.Errorf("%w: %v is of another driver than %v", ErrInvalid, d, r.dev)
	case d.state == r.dev.state && a == AccessNone:
		err = fmt.Errorf("%w: %v owns the memory and cannot be revoked", ErrInvalid, d)
	case d.state != r.dev.state && a != AccessNone:
		err = reach(d, r.dev)
	}
	return pairFail(d, r.dev, err)
}

// checkPath is nil if there is a path from one device to the other's memory.
func checkPath(from, to *Device) error {
	ok, err := from.drv.CanAccessPeer(from.state.n, to.state.n)
	if err == nil && !ok {
		err = fmt.Errorf("%w: no path between them", ErrNotSupported)
	}
	return err
}

// lockEach takes one lock of each reservation, in the order of their ids.
func lockEach(all []*Reservation, of func(*Reservation) *lock.Mutex) (unlock func()) {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b *Reservation) int { return cmp.Compare(a.id, b.id) })
	for _, r := range sorted {
		of(r).Lock()
	}
	return func() {
		for _, r := range sorted {
			of(r).Unlock()
		}
	}
}

// lockGrants holds the grants of several reservations as they are.
func lockGrants(all []*Reservation) (unlock func()) {
	if len(all) > 0 && all[0].dev.state.parent.hooks.noGrantLock {
		return func() {}
	}
	return lockEach(all, func(r *Reservation) *lock.Mutex { return &r.grantMu })
}

// accessChange is access that was set and may still be undone, exactly: r.grantMu is
// held until finish or undo, so no access has been set since.
type accessChange struct {
	r *Reservation
	*grants.Change[*deviceState, *Device]
}

// changeAccessLocked sets access, of devices that are eligible: first it waits for the work of
// those that lose some. The caller holds r.grantMu.
func (r *Reservation) changeAccessLocked(to []grant) (*accessChange, error) {
	if !r.dev.state.parent.hooks.noGrantLock {
		invariants.Held(&r.grantMu)
	}
	if err := r.checkOpen(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	c := &accessChange{r, r.grants.Begin(to)}
	losing := c.Narrows || r.anyInDoubtLocked()
	r.mu.Unlock()
	// Nothing is told to the driver before the work of those that lose access has ended.
	var err error
	if losing {
		err = r.waitForUsers()
	}
	if err == nil {
		err = r.setAccess(to)
	}
	if err != nil {
		c.finish()
		return nil, err
	}
	return c, nil
}

// waitForUsers waits for what uses the memory, in this package and on the devices.
func (r *Reservation) waitForUsers() error {
	r.waitForCopies(0, r.size)
	return r.waitForWork()
}

// finish makes a change final, or what is left of it after an undo: devices that have
// no access may close.
func (c *accessChange) finish() {
	for _, g := range c.Before {
		if c.r.grants.Access(g.Dev) == AccessNone {
			g.Holder.untrack(grantKey{c.r})
		}
	}
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.grants.End(c.Change)
}

// undo sets the access back, without a wait for work: no caller has been told of
// what was given, and nothing of ours has used it. If the driver refuses, the grants are as
// before all the same, and its access is in doubt.
func (c *accessChange) undo() error {
	r := c.r
	r.mappingMu.Lock()
	err := r.setAccessLocked(c.Before)
	if err != nil {
		r.mu.Lock()
		r.grants.Set(c.Before)
		r.doubtLocked(0, r.table.Len(), c.Before, err)
		r.mu.Unlock()
	}
	r.mappingMu.Unlock()
	c.finish()
	return err
}

// setAccess is setAccessLocked with r.mappingMu. It needs r.grantMu.
func (r *Reservation) setAccess(to []grant) error {
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	return r.setAccessLocked(to)
}

// setAccessLocked sets access: on the driver, then in the grants. It needs r.mappingMu
// and r.grantMu. It may list devices that stay without access, until finish.
func (r *Reservation) setAccessLocked(to []grant) error {
	invariants.Held(&r.mappingMu)
	after, before := r.grants.Calls(to, r.anyInDoubt())
	if len(after) == 0 {
		return nil
	}
	// Listed first, so that no device closes while it has access.
	for _, g := range to {
		if g.Access == AccessNone || r.grants.Access(g.Dev) != AccessNone {
			continue
		}
		if err := g.Holder.track(grantKey{r}, "grant"); err != nil {
			return pairFail(g.Holder, r.dev, err)
		}
	}
	for i, j := range r.table.Runs() {
		if err := r.setRunAccessLocked(i, j, after); err != nil {
			return r.restoreAccessLocked(j, before, to, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grants.Set(to)
	r.noneInDoubtLocked()
	return nil
}

// runCount is how many calls of setRunAccessLocked all of it takes.
func (r *Reservation) runCount() (n int) {
	for range r.table.Runs() {
		n++
	}
	return n
}

// setRunAccessLocked sets the access of who to the slots [i, j), which lie side by side.
func (r *Reservation) setRunAccessLocked(i, j int, who []driver.Grant) error {
	invariants.Held(&r.mappingMu)
	off := r.table.At(i).Off
	return r.dev.drv.SetAccess(r.ptr+Ptr(off), r.table.At(j-1).End()-off, who)
}

// restoreAccessLocked undoes SetAccess on the first n slots, the failed run included, which
// may be half done. If that fails too, the access of to is in doubt. It needs r.mappingMu.
func (r *Reservation) restoreAccessLocked(n int, before []driver.Grant, to []grant, cause error) error {
	invariants.Held(&r.mappingMu)
	for i, j := range r.table.Runs() {
		if i >= n {
			break
		}
		err := r.setRunAccessLocked(i, j, before)
		if err == nil {
			continue
		}
		cause = errtext.Join(cause, "and setting access back", err)
		r.mu.Lock()
		r.doubtLocked(i, j, to, cause)
		r.mu.Unlock()
	}
	return cause
}

func (k grantKey) describe(kind string) string {
	return withName(fmt.Sprintf("%s of memory of %v at %v", kind, k.r.dev, k.r.ptr), k.r.name)
}

func (k grantKey) where() (p Ptr, size uint64) { return k.r.ptr, k.r.size }
