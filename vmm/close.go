package vmm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/internal/slots"
)

// Close waits for work that may use the memory, unmaps it and frees the
// addresses. A held reservation, and one inside a Range, returns ErrBusy and
// stays as it is; so does, with ErrCapturing, one that a captured stream may
// use. If the device is lost, everything is given back all the same and the
// error returned. On any other failure nothing but Close works any more; call
// it again. Twice is fine, and so is a nil Reservation.
func (r *Reservation) Close() error { return r.CloseContext(context.Background()) }

// CloseContext is Close that stops waiting when ctx is done and returns its
// error. The close goes on by itself; Device.Close waits for it.
func (r *Reservation) CloseContext(ctx context.Context) error {
	if r == nil {
		return nil
	}
	if err := r.notInRange(); err != nil {
		return r.fail("close", 0, r.size, err)
	}
	if ctx != nil {
		r.closesRunning.Add(1)
	}
	return r.fail("close", 0, r.size, r.dev.until(ctx, func() error {
		defer r.closesRunning.Add(-1)
		return r.close(new(sync.Mutex))
	}))
}

// until runs f to its end, but returns when ctx is done.
func (d *Device) until(ctx context.Context, f func() error) error {
	if ctx == nil {
		return fmt.Errorf("%w: no context", ErrInvalid)
	}
	if ctx.Done() == nil {
		return f()
	}
	done := make(chan error, 1)
	d.runInBackground(func() { done <- f() })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	default:
		return ctx.Err()
	}
}

// close is Close for a user's reservation and for the one inside a range; with keeps
// others from adding to it while it is being closed to them.
func (r *Reservation) close(with sync.Locker) error {
	r.closeMu.Lock()
	defer r.closeMu.Unlock()
	r.grantMu.Lock()
	defer r.grantMu.Unlock()
	with.Lock()
	t, was, err := r.beginClose()
	with.Unlock()
	if err != nil || t == nil {
		return err
	}
	r.copies.wait()
	err = r.lastFence()
	switch {
	case errors.Is(err, ErrCapturing):
		r.undoClose(t, was)
	case err == nil || errors.Is(err, ErrDeviceLost):
		err = also(err, "and giving it back", r.teardown())
	}
	return err
}

// beginClose lets nothing in any more and retires everything; nil if it is closed
// already. The caller then waits for copies.
func (r *Reservation) beginClose() (t *retirement, was uint32, err error) {
	r.mappingMu.Lock() // a growth that is under way ends first
	defer r.mappingMu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	was = r.phase.Load()
	if was == isClosed {
		return nil, was, nil
	}
	if len(r.holds) > 0 {
		return nil, was, fmt.Errorf("%w: bytes of it are held", ErrBusy)
	}
	r.phase.Store(isClosing)
	return r.retireLocked(0, len(r.table)), was, nil
}

// lastFence is fence if there is something that work could be using.
func (r *Reservation) lastFence() error {
	r.mu.Lock()
	used := slices.ContainsFunc(r.table, func(s slot) bool { return s.State != slots.Mapped })
	r.mu.Unlock()
	if !used {
		return nil
	}
	return r.fence()
}

// undoClose undoes beginClose.
func (r *Reservation) undoClose(t *retirement, to uint32) {
	r.unretire(t)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase.Store(to)
}

// teardown gives back whatever the driver will take. What it refuses stays
// quarantined, and the reservation closing.
func (r *Reservation) teardown() error {
	r.mappingMu.Lock()
	gone, failed := r.unmapRuns(func(*slot) bool { return true })
	left := len(r.table)
	r.mappingMu.Unlock()
	for _, m := range gone {
		failed = also(failed, "and", m.release())
	}
	if left == 0 {
		failed = also(failed, "and", r.free())
	}
	return failed
}

// free gives the addresses back; with them the reservation is closed.
func (r *Reservation) free() error {
	r.dropRetirements()
	// Out of the look-up first: the driver may hand the addresses out again at once.
	all := r.dev.state.parent
	all.remove(r)
	if err := r.dev.drv().Free(r.ptr, r.size); err != nil {
		all.add(r)
		return err
	}
	giveAddresses(r.size)
	r.dev.counters.sub(r.size, &r.dev.counters.reserved)
	r.mu.Lock()
	r.phase.Store(isClosed)
	r.notify()
	grants, named, pending := r.grants[1:], r.namedStreams, r.pendingAppends
	r.namedStreams, r.pendingAppends = nil, nil
	r.mu.Unlock()
	// The devices and streams last: until here they stay open for the memory.
	for _, g := range grants {
		g.dev.untrack(grantKey{r, g.dev})
	}
	for s := range named {
		s.removeUser(r)
	}
	for s := range pending {
		s.removeUser(r)
	}
	r.dev.untrack(r)
	return nil
}
