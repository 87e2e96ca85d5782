package vmm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Close waits for work that may use the memory, unmaps it and frees the
// addresses. A held reservation, and one inside a Range, answers ErrBusy and
// stays as it is; so does, with ErrCapturing, one that a captured stream may
// use. If the device is lost, everything is given back all the same and the
// error returned. On any other failure nothing but Close works any more; call
// it again. Twice is fine, and so is a nil Reservation.
func (r *Reservation) Close() error { return r.CloseContext(context.Background()) }

// CloseContext is Close that stops waiting when ctx is done and answers its
// error. The close goes on by itself; Device.Close joins it.
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

// close is Close for whoever the reservation belongs to; with is what keeps
// others from adding to it while it is being closed to them.
func (r *Reservation) close(with sync.Locker) error {
	r.closeMu.Lock()
	defer r.closeMu.Unlock()
	r.grantMu.Lock()
	defer r.grantMu.Unlock()
	with.Lock()
	turn, was, err := r.beginClose()
	with.Unlock()
	if err != nil || turn == 0 {
		return err
	}
	err = r.lastFence()
	switch {
	case errors.Is(err, ErrCapturing):
		r.undoClose(turn, was)
	case err == nil || errors.Is(err, ErrDeviceLost):
		err = also(err, "and giving it back", r.teardown())
	}
	return err
}

// beginClose lets nobody in any more and retires everything; no copy of ours is
// under way when it returns. The turn is 0 if there is nothing left to do.
func (r *Reservation) beginClose() (turn uint64, was uint32, err error) {
	turn, was, err = r.markClosing()
	if err == nil && turn > 0 {
		r.copies.wait()
	}
	return turn, was, err
}

func (r *Reservation) markClosing() (turn uint64, was uint32, err error) {
	r.mappingMu.Lock() // a growth that is under way ends first
	defer r.mappingMu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	was = r.phase.Load()
	if was == isClosed {
		return 0, 0, nil
	}
	if len(r.holds) > 0 {
		return 0, 0, fmt.Errorf("%w: bytes below %#x are held", ErrBusy, r.heldLocked())
	}
	r.phase.Store(isClosing)
	r.retireSeq++
	for i := range r.slots {
		r.retireSlotLocked(&r.slots[i])
	}
	return r.retireSeq, was, nil
}

// lastFence is fence where there is something that work could be using.
func (r *Reservation) lastFence() error {
	r.mu.Lock()
	used := slices.ContainsFunc(r.slots, func(s slot) bool { return s.state != mapped })
	r.mu.Unlock()
	if !used {
		return nil
	}
	return r.fence()
}

// reopen undoes beginClose.
func (r *Reservation) undoClose(turn uint64, to uint32) {
	r.unretire(turn, 0, r.size)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase.Store(to)
}

// teardown gives back whatever the driver will take. What it will not stays
// quarantined, and the reservation closing.
func (r *Reservation) teardown() error {
	gone, failed := r.unmapEverything()
	for _, m := range gone {
		failed = also(failed, "and", m.release())
	}
	r.mu.Lock()
	left := len(r.slots)
	r.mu.Unlock()
	if left == 0 {
		failed = also(failed, "and", r.free())
	}
	return failed
}

// unmapAll unmaps stretch by stretch and gives the memory that was there.
func (r *Reservation) unmapEverything() (gone []*memory, failed error) {
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	for j := len(r.slots); j > 0; {
		i := j - 1
		for i > 0 && r.slots[i-1].end() == r.slots[i].off {
			i--
		}
		off := r.slots[i].off
		err := r.dev.drv().Unmap(r.ptr+Ptr(off), r.slots[j-1].end()-off)
		r.mu.Lock()
		if err != nil {
			failed = also(failed, "and", err)
			for k := i; k < j; k++ {
				r.quarantineLocked(&r.slots[k], err)
			}
		} else {
			gone = r.removeSlotsLocked(i, j, gone)
			r.generation.Add(1)
		}
		r.mu.Unlock()
		j = i
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notify()
	return gone, failed
}

// free gives the addresses back; with them the reservation is closed.
func (r *Reservation) free() error {
	r.dropRetirements()
	sys := r.dev.state.parent
	sys.remove(r)
	if err := r.dev.drv().Free(r.ptr, r.size); err != nil {
		sys.add(r)
		return err
	}
	giveAddresses(r.size)
	r.dev.counters.reserved.sub(r.size)
	r.mu.Lock()
	r.phase.Store(isClosed)
	r.notify()
	grants, named, owed := r.grants[1:], r.namedStreams, r.pendingAppends
	r.namedStreams, r.pendingAppends = nil, nil
	r.mu.Unlock()
	for _, g := range grants {
		g.dev.untrack(grantKey{r, g.dev})
	}
	for s := range named {
		s.removeUser(r)
	}
	for s := range owed {
		s.removeUser(r)
	}
	r.dev.untrack(r)
	return nil
}
