package vmm

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// grant is what one device may do with all of a reservation, now and later.
type grant struct {
	dev    *Device
	access Access
}

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
	return r.granted(d.state)
}

// setGrants sets the access of devs to a.
func (r *Reservation) setGrants(a Access, devs []*Device) error {
	if err := r.checkDevices(a, devs); err != nil {
		return err
	}
	if err := r.checkOpen(); err != nil {
		return err // without waiting for the Close or Sleep that is under way
	}
	r.grantMu.Lock()
	defer r.grantMu.Unlock()
	change, err := r.changeAccessLocked(a, devs)
	if err != nil {
		return err
	}
	change.finish()
	return nil
}

// checkDevices checks devs before anything is changed or asked of the driver twice.
func (r *Reservation) checkDevices(a Access, devs []*Device) error {
	if err := r.checkAccess(a); err != nil {
		return err
	}
	if len(devs) == 0 {
		return fmt.Errorf("%w: no device", ErrInvalid)
	}
	for i, d := range devs {
		if err := r.checkGrant(a, d, checkPath); err != nil {
			return err
		}
		if slices.ContainsFunc(devs[:i], func(e *Device) bool { return e.state == d.state }) {
			return pairFail(d, r.dev, fmt.Errorf("%w: %v is named twice", ErrInvalid, d))
		}
	}
	return nil
}

// checkAccess says why no device can have access a.
func (r *Reservation) checkAccess(a Access) error {
	if a == AccessReadWrite && r.readOnly {
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

// grantOf is what d's ordinal has, and with which Device; none if there is no grant.
// It needs r.grantMu, r.mappingMu or r.mu.
func (r *Reservation) grantOf(d *Device) grant {
	if i := r.grantIndex(d.state); i >= 0 {
		return r.grants[i]
	}
	return grant{dev: d}
}

// grantIndex is where the device's grant is, -1 if it has none. It needs what grantOf needs.
func (r *Reservation) grantIndex(d *deviceState) int {
	return slices.IndexFunc(r.grants, func(g grant) bool { return g.dev.state == d })
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

// granted is what the device may do now. It needs what grantOf needs.
func (r *Reservation) granted(d *deviceState) Access {
	if i := r.grantIndex(d); i >= 0 {
		return r.grants[i].access
	}
	return AccessNone
}

// ban refuses new copies and launches of this package by a device. Those that began before may
// still be under way.
type ban struct {
	*deviceState
	left    Access // what stays allowed
	inDoubt error  // why the driver may have other access than the grant; then nothing is allowed
}

// banLocked adds a ban. It needs r.mu.
func (r *Reservation) banLocked(b *ban) *ban {
	invariants.Held(&r.mu)
	r.bans = append(r.bans, b)
	r.banCount.Store(int32(len(r.bans)))
	return b
}

// allowLocked removes the bans that match. It needs r.mu.
func (r *Reservation) allowLocked(match func(*ban) bool) {
	invariants.Held(&r.mu)
	r.bans = slices.DeleteFunc(r.bans, match)
	r.banCount.Store(int32(len(r.bans)))
}

// accessChange is access that was set and may still be undone, exactly: r.grantMu is
// held until finish or undo, so no access has been set since.
type accessChange struct {
	r      *Reservation
	before []grant // of the devices that it is about
	bans   []*ban  // refuse new copies and launches while access changes
}

// changeAccessLocked sets the access of devs, which are eligible, to a: first it waits
// for the work of those that lose some. The caller holds r.grantMu.
func (r *Reservation) changeAccessLocked(a Access, devs []*Device) (*accessChange, error) {
	if !r.dev.state.parent.hooks.noGrantLock {
		invariants.Held(&r.grantMu)
	}
	if err := r.checkOpen(); err != nil {
		return nil, err
	}
	c := &accessChange{r: r}
	var after []grant
	r.mu.Lock()
	losing := r.anyInDoubtLocked()
	for _, d := range devs {
		before := r.grantOf(d)
		c.before = append(c.before, before)
		c.bans = append(c.bans, r.banLocked(&ban{deviceState: d.state, left: min(a, before.access)}))
		after = append(after, grant{dev: d, access: a})
		losing = losing || a < before.access
	}
	r.mu.Unlock()
	// Nothing is told to the driver before the work of those that lose access has ended.
	var err error
	if losing {
		err = r.waitForUsers()
	}
	if err == nil {
		err = r.setAccess(after)
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
	for _, g := range c.before {
		if c.r.granted(g.dev.state) == AccessNone {
			g.dev.untrack(grantKey{c.r})
		}
	}
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.allowLocked(func(b *ban) bool { return slices.Contains(c.bans, b) })
}

// undo sets the access back, without a wait for work: no caller has been told of
// what was given, and nothing of ours has used it. If the driver refuses, the grants are as
// before all the same, and its access is in doubt.
func (c *accessChange) undo() error {
	r := c.r
	r.mappingMu.Lock()
	err := r.setAccessLocked(c.before)
	if err != nil {
		r.mu.Lock()
		r.recordGrantsLocked(c.before)
		r.doubtLocked(0, r.table.Len(), c.before, err)
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
	after, before := r.accessCallsLocked(to)
	if len(after) == 0 {
		return nil
	}
	// Listed first, so that no device closes while it has access.
	for _, g := range to {
		if g.access == AccessNone || r.granted(g.dev.state) != AccessNone {
			continue
		}
		if err := g.dev.track(grantKey{r}, "grant"); err != nil {
			return pairFail(g.dev, r.dev, err)
		}
	}
	for i, j := range r.table.Runs() {
		if err := r.setRunAccessLocked(i, j, after); err != nil {
			return r.restoreAccessLocked(j, before, to, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(to) > 0 {
		r.recordGrantsLocked(to)
	}
	r.noneInDoubtLocked()
	return nil
}

// accessCallsLocked is what to tell the driver to set access, and what to tell it to
// undo that. If an earlier undo failed, what the driver has is not known, so all
// access is set again. It needs r.mappingMu.
func (r *Reservation) accessCallsLocked(to []grant) (after, before []driver.Grant) {
	invariants.Held(&r.mappingMu)
	unsure := r.anyInDoubt()
	if unsure {
		for _, b := range r.bans {
			if b.inDoubt != nil {
				out := driver.Grant{To: Location{Kind: LocationDevice, ID: b.n}, Access: AccessNone}
				after, before = append(after, out), append(before, out)
			}
		}
		after, before = append(after, r.driverGrants...), append(before, r.driverGrants...)
	}
	for _, g := range to {
		if now := r.granted(g.dev.state); now != g.access || unsure {
			after = append(after, driver.Grant{To: g.dev.location, Access: g.access}) // the last one for a device counts
			before = append(before, driver.Grant{To: g.dev.location, Access: now})
		}
	}
	return after, before
}

func (b *ban) isInDoubt() bool { return b.inDoubt != nil }

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

// recordGrantsLocked enters access into the grants. The first is the owner's and stays. It needs r.mappingMu and r.mu.
func (r *Reservation) recordGrantsLocked(to []grant) {
	invariants.Held(&r.mu)
	grants := slices.Clone(r.grants)
	for _, g := range to {
		i := slices.IndexFunc(grants, func(o grant) bool { return o.dev.state == g.dev.state })
		switch {
		case i < 0 && g.access != AccessNone:
			grants = append(grants, g)
		case i > 0 && g.access == AccessNone:
			grants = slices.Delete(grants, i, i+1)
		case i >= 0:
			grants[i].access = g.access
		}
	}
	r.setGrantsLocked(grants)
}

// setGrantsLocked keeps the grants also in the driver's form, so that a Map allocates nothing.
func (r *Reservation) setGrantsLocked(grants []grant) {
	invariants.Held(&r.mu)
	who := make([]driver.Grant, len(grants))
	for i, g := range grants {
		who[i] = driver.Grant{To: g.dev.location, Access: g.access}
	}
	r.grants, r.driverGrants = grants, who
	r.setWaitsForLocked()
}

func (k grantKey) describe(kind string) string {
	return withName(fmt.Sprintf("%s of memory of %v at %v", kind, k.r.dev, k.r.ptr), k.r.name)
}

func (k grantKey) where() (p Ptr, size uint64) { return k.r.ptr, k.r.size }
