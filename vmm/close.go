package vmm

import (
	"context"
	"errors"
	"fmt"
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
	if err := r.outside(); err != nil {
		return r.fail("close", 0, r.size, err)
	}
	return r.fail("close", 0, r.size, r.dev.until(ctx, r.close))
}

// until runs f to its end, but returns when ctx is done.
func (d *Device) until(ctx context.Context, f func() error) error {
	if ctx.Done() == nil {
		return f()
	}
	done := make(chan error, 1)
	d.goOn(func() { done <- f() })
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

// close is Close for whoever the reservation belongs to.
func (r *Reservation) close() error {
	turn, err := r.beginClose()
	if err != nil || turn == 0 {
		return err
	}
	err = r.fence()
	switch {
	case errors.Is(err, ErrCapturing):
		r.reopen(turn)
	case err == nil || errors.Is(err, ErrDeviceLost):
		err = also(err, "and giving it back", r.teardown())
	}
	r.mu.Lock()
	close(r.closing)
	r.closing = nil
	r.mu.Unlock()
	return err
}

// beginClose waits for another Close to end, then retires everything. The turn
// is 0 if there is nothing left to do.
func (r *Reservation) beginClose() (turn uint64, err error) {
	r.mu.Lock()
	for r.closing != nil {
		other := r.closing
		r.mu.Unlock()
		<-other
		r.mu.Lock()
	}
	if r.phase == isClosed {
		r.mu.Unlock()
		return 0, nil
	}
	if len(r.holds) > 0 {
		r.mu.Unlock()
		return 0, fmt.Errorf("%w: bytes below %#x are held", ErrBusy, r.held())
	}
	r.phase = isClosing
	r.closing = make(chan struct{})
	r.mu.Unlock()

	r.use.Lock()
	defer r.use.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turns++
	for i := range r.slots {
		r.retireSlot(&r.slots[i])
	}
	return r.turns, nil
}

// reopen undoes beginClose.
func (r *Reservation) reopen(turn uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.slots {
		if r.slots[i].turn == turn {
			r.reviveSlot(&r.slots[i])
		}
	}
	r.phase = isOpen
}

// teardown gives back whatever the driver will take. What it will not stays
// quarantined, and the reservation closing.
func (r *Reservation) teardown() error {
	r.mu.Lock()
	drv := r.dev.drv()
	var gone []*memory
	var failed error
	for j := len(r.slots); j > 0; {
		i := j - 1
		for i > 0 && r.slots[i-1].end() == r.slots[i].off {
			i--
		}
		off := r.slots[i].off
		if err := drv.Unmap(r.ptr+Ptr(off), r.slots[j-1].end()-off); err != nil {
			failed = also(failed, "and", err)
			for k := i; k < j; k++ {
				r.stick(&r.slots[k], err)
			}
		} else {
			gone = r.cut(i, j, gone)
		}
		j = i
	}
	if len(r.slots) == 0 {
		failed = also(failed, "and", r.free())
	}
	r.mu.Unlock()
	for _, m := range gone {
		failed = also(failed, "and", m.drop())
	}
	return failed
}

// free gives the addresses back; with them the reservation is closed. It needs r.mu.
func (r *Reservation) free() error {
	r.dev.port.sys.remove(r)
	if err := r.dev.drv().Free(r.ptr, r.size); err != nil {
		r.dev.port.sys.add(r)
		return err
	}
	r.phase = isClosed
	r.notify()
	giveAddresses(r.size)
	r.dev.meter.reserved.sub(r.size)
	r.dev.untrack(r)
	for _, g := range r.grants[1:] {
		g.dev.untrack(grantKey{r, g.dev})
	}
	for s := range r.named {
		s.forget(r)
	}
	return nil
}
