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
	watchTimeout = 10 * time.Second // of one futex wait: an owner can move a thread that sleeps to a futex of its own
	watchIdle    = 32               // wakes in a row without a new length, before watch pauses
	watchBurst   = 32               // wakes within watchPause, before watch pauses
	watchPause   = time.Millisecond // the pause
)

// watchLocked starts watch unless it runs. Requires mu.
func (v *View) watchLocked() {
	invariants.Held(&v.mu)
	if v.watching || v.detached || v.closed || v.wake == nil {
		return
	}
	v.watching = true
	go v.watch(v.wake)
}

// watch sleeps on the wake page and notifies the waiting calls and streams, as long as
// there are any. An owner that wakes it without end cannot use up a CPU: after watchIdle
// or watchBurst wakes it pauses. endWatch ends it.
func (v *View) watch(page *wakePage) {
	since := time.Now()
	for idle, burst := 0, 0; ; idle, burst = idle+1, burst+1 {
		word := page.word().Load() // before the length, so that no change is missed
		moved, more := v.checkPage()
		if !more {
			return
		}
		if moved {
			idle = 0
			runtime.Gosched() // the notified goroutine runs now, on this thread
		}
		tooFast := burst == watchBurst && time.Since(since) < watchPause
		if idle >= watchIdle || tooFast {
			select {
			case <-v.stop:
			case <-time.After(watchPause):
			}
		}
		if burst == watchBurst {
			burst, since = 0, time.Now()
		}
		began := time.Now()
		page.wait(word, watchTimeout)
		v.counts.wakes.Add(1)
		// A wait that took its time was no wake without end.
		if time.Since(began) >= watchPause {
			idle = 0
		}
	}
}

// checkPage updates the length and reports whether it has moved, and whether anything
// waited for that. If nothing did, watch is over. Who has been notified may wait again, so
// watch sleeps once more then.
func (v *View) checkPage() (moved, more bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	more = !v.detached && !v.closed && (v.changed != nil || len(v.pendingWaits) > 0)
	v.watching = more
	return v.updateLenLocked(), more
}

// endWatch waits until watch is over, and unmaps the wake page. The View has ended. A
// wake that comes before the thread sleeps is lost, so it is repeated.
func (v *View) endWatch() {
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for {
		v.mu.Lock()
		watching, page := v.watching, v.wake
		if !watching {
			v.wake = nil
		}
		v.mu.Unlock()
		if !watching {
			page.close()
			return
		}
		page.wakeOwn()
		<-again.C
	}
}

// Wait waits until Len is at least n. If that cannot happen any more, it returns
// why: vmm.ErrBounds if n is beyond Max, ErrSealed if the object was sealed below
// n, vmm.ErrClosed after Close, else Err. If ctx ends first, it returns its error.
func (v *View) Wait(ctx context.Context, n uint64) error {
	if v == nil || ctx == nil {
		return fmt.Errorf("%w: no view, or no context", vmm.ErrInvalid)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for {
		if ok, err := v.reachedLocked(n); ok || err != nil {
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

// Changed is closed at the next change: of Len, Cap, Generation, Sealed or Err. Once
// nothing more can come it is closed already: after Close, after an error, and when a
// sealed object is wholly mapped.
func (v *View) Changed() <-chan struct{} {
	if v == nil {
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
	if v.lenLocked() == v.notifiedLen {
		return false
	}
	v.notifyLenLocked()
	return true
}

// notifyLenLocked notifies of the present length, and of what else has changed.
// Requires mu.
func (v *View) notifyLenLocked() {
	invariants.Held(&v.mu)
	v.notifiedLen = v.lenLocked()
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
