package shareable

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm"
)

const (
	watchIdle  = 32               // wakes in a row without a new length, before watch pauses
	watchBurst = 32               // wakes within watchPause, before watch pauses
	watchPause = time.Millisecond // the pause
)

// watchLocked starts watch unless it runs. Requires mu.
func (v *View) watchLocked() {
	invariants.Held(&v.mu)
	// Of a sealed object nothing changes that the wake socket tells.
	if v.watching || v.detached || v.closed || v.wake == nil || v.sealed {
		return
	}
	v.watching = true
	go v.watch(v.wake)
}

// watch waits for the page to change and notifies the waiting calls and streams, as long as
// there are any.
func (v *View) watch(wake *wakeReceiver) {
	for {
		moved, more := v.checkPage()
		if !more {
			return
		}
		if moved {
			runtime.Gosched() // the notified goroutine runs now, on this thread
		}
		v.pace.look(moved, v.ctx.Done())
		begun := time.Now()
		if !wake.wait() {
			v.endWatch(wake)
			return
		}
		v.counts.wakes.Add(1)
		if time.Since(begun) >= watchPause {
			v.pace.idle = 0 // no wake without end
		}
	}
}

// wakePace keeps an owner that wakes a View without end from using up a CPU.
type wakePace struct {
	idle, burst int       // looks in a row without a new length; looks since
	since       time.Time // when the burst began
}

// look counts one look at the length. After watchIdle, or watchBurst within watchPause,
// it pauses.
func (p *wakePace) look(moved bool, stop <-chan struct{}) {
	if moved {
		p.idle = 0
	}
	if p.idle >= watchIdle || p.burst >= watchBurst && time.Since(p.since) < watchPause {
		select {
		case <-stop:
		case <-time.After(watchPause):
		}
	}
	if p.burst >= watchBurst {
		p.burst, p.since = 0, time.Now()
	}
	p.idle, p.burst = p.idle+1, p.burst+1
}

// checkPage updates the length and reports whether it has moved, and whether anything
// waited for that. If nothing did, watch is over. Who has been notified may wait again, so
// watch waits once more then.
func (v *View) checkPage() (moved, more bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	more = v.waitedForLocked()
	moved = v.updateLenLocked()
	more = more && !v.detached && !v.closed
	v.watching = more
	return moved, more
}

// waitedForLocked reports whether a call or a stream waits for a change. Requires mu.
func (v *View) waitedForLocked() bool {
	invariants.Held(&v.mu)
	return v.changed != nil || len(v.pendingWaits) > 0
}

// endWatch records that watch is over: nothing comes over a wake socket any more.
func (v *View) endWatch(wake *wakeReceiver) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.watching = false
	if v.wake != wake && v.waitedForLocked() { // there is another one
		v.watchLocked()
	}
}

// Wait waits until Len is at least n. If that cannot happen any more, it returns why: vmm.ErrBounds
// if n is beyond Max, ErrSealed if the object was sealed below n, vmm.ErrClosed after Close, else
// Err. If ctx ends first, it returns ctx.Err().
func (v *View) Wait(ctx context.Context, n uint64) error {
	if v == nil || v.dev == nil || ctx == nil {
		return fmt.Errorf("%w: no view, or no context", vmm.ErrInvalid)
	}
	return v.waitUntil(ctx, func() (bool, error) { return v.reachedLocked(n) })
}

// WaitSealed waits until the object is sealed and fully mapped, and Digest knows what the owner has
// sent. If that cannot happen any more, it returns why: vmm.ErrClosed after Close, else Err. If ctx
// ends first, it returns ctx.Err().
func (v *View) WaitSealed(ctx context.Context) error {
	if v == nil || v.dev == nil || ctx == nil {
		return fmt.Errorf("%w: no view, or no context", vmm.ErrInvalid)
	}
	return v.waitUntil(ctx, v.wholeLocked)
}

// wholeLocked reports whether WaitSealed is over; the error is why it never will be.
// Requires mu, for reading at least.
func (v *View) wholeLocked() (bool, error) {
	invariants.Held(&v.mu)
	switch {
	case v.closed:
		return false, errViewClosed
	case v.detached:
		return v.err == nil, v.err
	}
	return v.finished && v.mapped >= v.sealedLen, nil
}

// waitUntil waits until reached, which is called with mu held, reports true or an error.
func (v *View) waitUntil(ctx context.Context, reached func() (bool, error)) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for {
		if ok, err := reached(); ok || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		// The channel is taken and the watch is on before the lock is given up, so
		// that no change is missed.
		changed := v.changedLocked()
		v.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		v.mu.Lock()
	}
}

// Changed returns a channel that is closed at the next change of Len, Cap, Generation, Sealed or
// Err. To miss no change, call it before you look at those. The channel is already closed if
// nothing more can come: after Close, after an error, and when a sealed object is wholly mapped.
func (v *View) Changed() <-chan struct{} {
	if v == nil || v.dev == nil {
		return closedChan
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed || v.detached || v.sealed && v.mapped >= v.sealedLen {
		return closedChan
	}
	// A length that has moved already is no change that comes next.
	v.updateLenLocked()
	return v.changedLocked()
}

var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// changedLocked returns the channel that the next change closes. Requires mu.
func (v *View) changedLocked() <-chan struct{} {
	invariants.Held(&v.mu)
	if v.changed == nil {
		v.changed = make(chan struct{})
	}
	v.watchLocked()
	return v.changed
}

// reachedLocked reports whether Len is at least n; the error is why it never will
// be. Requires mu, for reading at least.
func (v *View) reachedLocked(n uint64) (bool, error) {
	invariants.Held(&v.mu)
	switch {
	case v.closed:
		return false, errViewClosed
	case v.lenLocked() >= n:
		return true, nil
	case n > v.max:
		return false, fmt.Errorf("%w: %d bytes, over a maximum of %d", vmm.ErrBounds, n, v.max)
	case v.detached && v.err != nil:
		return false, v.err
	case v.sealed && n > v.sealedLen:
		return false, fmt.Errorf("%w: %d bytes, below %d", ErrSealed, v.sealedLen, n)
	}
	return false, nil
}

// updateLenLocked notifies if Len has moved since the last time, and reports
// whether it has. Requires mu.
func (v *View) updateLenLocked() (moved bool) {
	invariants.Held(&v.mu)
	n := v.lenLocked()
	if n == v.notifiedLen {
		return false
	}
	v.notifyLenLocked(n)
	return true
}

// notifyLenLocked notifies of the length n, and of what else has changed. Requires mu.
func (v *View) notifyLenLocked(n uint64) {
	invariants.Held(&v.mu)
	v.notifiedLen = n
	v.notifyLocked()
}

// notifyLocked closes the channel of Changed, which wakes every call of Wait, and
// releases the streams whose wait is over. Requires mu.
func (v *View) notifyLocked() {
	invariants.Held(&v.mu)
	if v.changed != nil {
		close(v.changed)
		v.changed = nil
	}
	v.pendingWaits = slices.DeleteFunc(v.pendingWaits, func(s *streamWait) bool {
		ok, err := v.reachedLocked(s.n)
		if ok || err != nil {
			s.release()
			return true
		}
		return false
	})
}

// reached is reachedLocked for a caller that does not hold mu.
func (v *View) reached(n uint64) (bool, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.reachedLocked(n)
}
