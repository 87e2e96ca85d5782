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
	watchTimeout = 100 * time.Millisecond // of one futex wait, in case a wake is missed
	watchIdle    = 32                     // wakes in a row without a new length, before watchPage pauses
	watchBurst   = 32                     // wakes within watchPause, before watchPage pauses
	watchPause   = time.Millisecond       // the pause
)

// watchLocked starts watchPage unless it runs. Requires mu.
func (v *View) watchLocked() {
	invariants.Held(&v.mu)
	if v.watching || v.detached || v.closed || v.page == nil {
		return
	}
	v.watching = true
	v.tasks.Add(1)
	go v.watchPage(v.page)
}

// watchPage sleeps on the page's wake word and notifies the waiting calls and
// streams, as long as there are any. An owner that wakes it without end cannot use
// up a CPU: after watchIdle or watchBurst wakes it pauses.
func (v *View) watchPage(page *readerPage) {
	defer v.tasks.Done()
	since := time.Now()
	for idle, burst := 0, 0; ; idle, burst = idle+1, burst+1 {
		v.pageChecks.Add(1)
		wake := page.wake() // before the length, so that no change is missed
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
		page.wait(wake, watchTimeout)
		// A wait that took its time was no wake without end.
		if time.Since(began) >= watchPause {
			idle = 0
		}
	}
}

// checkPage updates the length and reports whether it has moved, and whether
// anything still waits for more.
func (v *View) checkPage() (moved, more bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	moved = v.updateLenLocked()
	more = !v.detached && !v.closed && (v.waiters > 0 || len(v.pendingWaits) > 0)
	v.watching = more
	return moved, more
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
		if v.lenChanged == nil {
			v.lenChanged = make(chan struct{})
		}
		changed := v.lenChanged
		v.waiters++
		v.watchLocked()
		v.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		v.mu.Lock()
		v.waiters--
	}
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
	case n > v.obj.Max:
		return false, fmt.Errorf("%w: %d bytes, over a maximum of %d", vmm.ErrBounds, n, v.obj.Max)
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
	v.notifiedLen = n
	v.notifyLocked()
	return true
}

// notifyLocked wakes every call of Wait, and releases the streams whose wait is
// over. Requires mu.
func (v *View) notifyLocked() {
	invariants.Held(&v.mu)
	if v.lenChanged != nil {
		close(v.lenChanged)
		v.lenChanged = nil
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
