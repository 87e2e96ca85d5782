package vmm

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/internal/slots"
)

// A slot is quarantined where an undo has failed: the driver may have mapped it or not, or may
// have other access there than the grants. It stays in the table. Growth past it returns the
// cause, and what may not use it is refused (checkGrantedLocked), until one of these has mended it:
//
//	unmapNeverAccessible  memory that no one could use is unmapped, without a wait: under pressure
//	repair                access is set anew, or a range that sleeps is unmapped, after a wait: Trim
//	setAccessLocked       access is set anew: Grant, Revoke, EnablePeers
//	Close, Wake           unmap what is there

// quarantineLocked marks a slot where an undo failed. From now on growth past it
// returns cause. It needs r.mu.
func (r *Reservation) quarantineLocked(s *slot, cause error) {
	invariants.Held(&r.mu)
	if s.Quarantined == nil {
		r.dev.counters.Add(s.Size, &r.dev.counters.Quarantined, &r.counters.Quarantined)
	}
	s.Quarantined = cause
}

// unquarantineLocked undoes quarantineLocked. It needs r.mu.
func (r *Reservation) unquarantineLocked(s *slot) {
	invariants.Held(&r.mu)
	if s.Quarantined != nil {
		r.dev.counters.Sub(s.Size, &r.dev.counters.Quarantined, &r.counters.Quarantined)
	}
	s.Quarantined = nil
}

// anyQuarantinedLocked reports whether a slot is quarantined. It needs r.mu.
func (r *Reservation) anyQuarantinedLocked() bool {
	invariants.Held(&r.mu)
	return r.counters.Quarantined.Now > 0
}

// quarantineErrLocked is the error of a quarantined slot that begins at most at off,
// nil if there is none. It needs r.mu.
func (r *Reservation) quarantineErrLocked(off uint64) error {
	invariants.Held(&r.mu)
	for i := 0; r.counters.Quarantined.Now > 0 && i < r.table.Len(); i++ {
		if s := r.table.At(i); s.Off <= off && s.Quarantined != nil {
			return fmt.Errorf("quarantined: %w", s.Quarantined)
		}
	}
	return nil
}

// anyInDoubt is anyInDoubtLocked with r.mu.
func (r *Reservation) anyInDoubt() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.anyInDoubtLocked()
}

// anyInDoubtLocked reports whether the driver may have other access than the grants. It needs r.mu.
func (r *Reservation) anyInDoubtLocked() bool {
	invariants.Held(&r.mu)
	return r.grants.InDoubt() || r.anyQuarantinedLocked() &&
		r.table.Any(func(s *slot) bool { return s.State != slots.Mapped && s.Quarantined != nil })
}

// doubtLocked notes that the driver may have either access, on the slots [i, j), to the devices
// of to: they are waited for as if they had it, and may not use it until setAccessLocked
// succeeds. It needs r.mappingMu and r.mu.
func (r *Reservation) doubtLocked(i, j int, to []grant, cause error) {
	invariants.Held(&r.mu)
	for _, s := range r.table.Between(i, j) {
		r.quarantineLocked(s, cause)
	}
	r.grants.Doubt(to, cause)
	r.users.SetGranted(r.grants.Devices())
}

// noneInDoubtLocked notes that the driver agrees with the grants again. It needs r.mu.
func (r *Reservation) noneInDoubtLocked() {
	invariants.Held(&r.mu)
	r.grants.Agree()
	r.users.SetGranted(r.grants.Devices())
	for i := 0; r.anyQuarantinedLocked() && i < r.table.Len(); i++ {
		if s := r.table.At(i); s.State != slots.Mapped {
			r.unquarantineLocked(s)
		}
	}
}

// openReservations are the device's open reservations.
func (d *Device) openReservations() (all []*Reservation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for thing := range d.unclosed {
		if r, ok := thing.(*Reservation); ok {
			all = append(all, r)
		}
	}
	return all
}

// unmapNeverAccessible unmaps memory that was mapped but never accessible, and so waits for no
// work.
func (r *Reservation) unmapNeverAccessible() error {
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	r.mu.Lock()
	bad := r.checkOpen() == nil && r.anyQuarantinedLocked()
	r.mu.Unlock()
	if !bad {
		return nil
	}
	_, failed := r.unmapRunsLocked(func(s *slot) bool { return s.State == slots.Mapped })
	return failed
}

// repair mends, after a wait for the work that may use the memory, what an undo that failed has
// left: the driver agrees with the grants again, and a sleeping range has no memory. What is under
// way with the grants, or with sleep, does so itself.
func (r *Reservation) repair() error {
	if !errors.Is(r.checkOpen(), ErrAsleep) {
		return r.settleAccess()
	}
	if !r.closeMu.TryLock() {
		return nil
	}
	defer r.closeMu.Unlock()
	if !errors.Is(r.checkOpen(), ErrAsleep) {
		return nil
	}
	return r.unmapQuarantined()
}

// settleAccess has the driver agree with the grants again.
func (r *Reservation) settleAccess() error {
	if !r.anyInDoubt() || !r.grantMu.TryLock() {
		return nil
	}
	defer r.grantMu.Unlock()
	if r.checkOpen() != nil {
		return nil // what ends or sleeps has no access
	}
	if err := r.waitForUsers(); err != nil {
		return err
	}
	return r.setAccess(nil)
}

// unmapQuarantined unmaps what an earlier undo, of a range that sleeps, could not. It needs
// r.closeMu.
func (r *Reservation) unmapQuarantined() error {
	r.mu.Lock()
	cause := r.quarantineErrLocked(r.size)
	r.mu.Unlock()
	if cause == nil {
		return nil
	}
	if err := r.waitForWork(); err != nil && !lost(err) {
		return errtext.Join(cause, "and waiting to unmap it", err)
	}
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	_, err := r.unmapRunsLocked(func(*slot) bool { return true })
	return err
}
