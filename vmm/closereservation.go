package vmm

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/vmm/internal/slots"
)

// Close waits for work that may use the memory, unmaps it and frees the addresses.
//
// It returns ErrBusy while the reservation is held, and for one inside a Range; close the Range. It
// returns ErrCapturing if a captured stream may use the memory. While it checks that, other calls may
// return ErrClosed. After either error the reservation is open as before. If the device is lost, Close
// frees everything all the same, and returns the error. After any other error only Close works; call it
// again. Twice is fine, and so is a nil Reservation.
func (r *Reservation) Close() error { return r.CloseContext(context.Background()) }

// CloseContext is Close, but stops waiting when ctx is done and returns ctx's error. The close goes on by
// itself; Device.Close waits for it. Another CloseContext waits for it first.
func (r *Reservation) CloseContext(ctx context.Context) error {
	if r == nil || r.dev == nil {
		return nil
	}
	if err := r.checkNotOwnedByRange(); err != nil {
		return r.wrap("close", 0, r.size, err)
	}
	return r.closeContext(ctx, func() error { return r.close(new(sync.Mutex)) })
}

// closeContext runs closeAll, of the reservation or of its range, for CloseContext.
func (r *Reservation) closeContext(ctx context.Context, closeAll func() error) error {
	if ctx == nil {
		return r.wrap("close", 0, r.size, errNoContext)
	}
	detached := ctx.Done() != nil
	if detached {
		select {
		case r.closeSlot <- struct{}{}:
		default: // another close is running
			select {
			case r.closeSlot <- struct{}{}:
			case <-ctx.Done():
				return r.wrap("close", 0, r.size, ctx.Err())
			}
		}
	}
	r.closesRunning.Add(1)
	return r.wrap("close", 0, r.size, r.dev.runDetached(ctx, func() error {
		err := closeAll()
		r.closesRunning.Add(-1)
		if detached {
			<-r.closeSlot
		}
		return err
	}))
}

// close closes a user's reservation, or the one inside a range, whose lenMu it takes so that
// no Append is half done.
func (r *Reservation) close(lenMu sync.Locker) error {
	r.closeMu.Lock()
	defer r.closeMu.Unlock()
	r.grantMu.Lock()
	defer r.grantMu.Unlock()
	lenMu.Lock()
	t, was, err := r.beginClose()
	lenMu.Unlock()
	if err != nil || t == nil {
		return err
	}
	// The library's own copies first: they may still queue work, which is waited for next.
	r.waitForCopies(0, r.size)
	r.mu.Lock()
	used := r.table.Any(func(s *slot) bool { return s.State != slots.Mapped })
	r.mu.Unlock()
	switch {
	// No copy is under way any more, so what a capture uses is known.
	case r.captured():
		err = fmt.Errorf("%w: its graph uses the memory", ErrCapturing)
	case used: // else there is nothing that work could be using
		err = r.waitForWork()
	}
	switch {
	// Only a capture opens it again: it ends, and the memory is as usable as before. If the
	// wait itself failed, the device may be beyond use: then nothing but Close works.
	case errors.Is(err, ErrCapturing):
		r.unretire(t)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.phase.Store(was)
	case err == nil || errors.Is(err, ErrDeviceLost):
		err = errtext.Join(err, "and giving it back", r.teardown())
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
	if was == phaseClosed {
		return nil, was, nil
	}
	if err := r.checkAllHoldsLocked(); err != nil {
		return nil, was, err
	}
	r.phase.Store(phaseClosing)
	return r.retireLocked(0, r.table.Len()), was, nil
}

// teardown gives back whatever the driver will take. What it refuses stays
// quarantined, and the reservation closing.
func (r *Reservation) teardown() error {
	r.mappingMu.Lock()
	refused, failed := r.unmapRunsLocked(func(*slot) bool { return true })
	left := r.table.Len()
	r.mappingMu.Unlock()
	failed = errtext.Join(failed, "and", refused)
	if left == 0 {
		failed = errtext.Join(failed, "and", r.finishClose())
	}
	return failed
}

// finishClose gives the addresses back; with them the reservation is closed.
func (r *Reservation) finishClose() error {
	_ = r.unmapEarlier() // nothing is mapped any more: it only frees their events
	// Out of the look-up first: the driver may hand the addresses out again at once.
	all := r.dev.state.parent
	all.remove(r)
	r.note(history.Close, 0, r.size)
	if err := all.unreserve(r.ptr, r.size); err != nil {
		all.add(r)
		r.note(history.Reserve, 0, r.size)
		return err
	}
	r.dev.counters.Sub(r.size, &r.dev.counters.Reserved)
	r.mu.Lock()
	r.phase.Store(phaseClosed)
	r.notify()
	peers, streams := r.grants.Peers(), r.users.Clear()
	r.mu.Unlock()
	// The devices and streams last: until here they stay open for the memory.
	for _, g := range peers {
		g.Holder.untrack(grantKey{r})
	}
	for _, s := range streams {
		s.removeWaitedForBy(r)
	}
	r.dev.untrack(r)
	return nil
}
