package shareable

import (
	"context"
	"runtime"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// spin is spinLocked for watch, which looks at the page already, while a call or a stream waits.
// Whoever has the channel of Changed may have gone.
func (v *View) spin() (changed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.spinLocked(nil)
}

// spinForCallLocked is spinLocked for a call that waits, unless watch looks at the page. A call
// that spins needs no other goroutine to be woken. Requires mu.
func (v *View) spinForCallLocked(ctx context.Context) (changed bool) {
	invariants.Held(&v.mu)
	if v.opts.Spin == 0 || v.watching {
		return false
	}
	if v.updateLenLocked() { // a growth that no call waited for
		return true
	}
	v.watching = true
	v.waiting++
	changed = v.spinLocked(ctx.Done())
	v.waiting--
	v.updateLenLocked()
	v.watching = false
	if v.waitedForLocked() { // others have relied on this call
		v.watchLocked()
	}
	return changed
}

// spinLocked looks at the page until Len changes, until notifyLocked is called, or until done,
// and reports whether one of the first two happened. It does so until AttachOptions.Spin after the
// last growth, and while a call or a stream waits. Requires mu, which it gives up meanwhile.
func (v *View) spinLocked(done <-chan struct{}) (changed bool) {
	invariants.Held(&v.mu)
	end := v.grownAt.Add(v.opts.Spin)
	needed := func() bool { return v.waiting > 0 || len(v.pendingWaits) > 0 }
	if v.opts.Spin == 0 || !needed() || !time.Now().Before(end) || !v.pageLiveLocked() || !severalProcessors() {
		return false
	}
	v.counts.spins.Add(1)
	before := v.notices
	v.mu.Unlock()
	for over := false; !over && time.Now().Before(end); {
		select {
		case <-done:
			over = true
		default:
			v.mu.RLock()
			over = v.notices != before || v.lenLocked() != v.notifiedLen || !v.pageLiveLocked() || !needed()
			v.mu.RUnlock()
		}
	}
	v.mu.Lock()
	v.counts.spun.Add(1)
	return v.lenLocked() != v.notifiedLen || v.notices != before
}

// pageLiveLocked reports whether the page can show a change yet. Requires mu, for reading at least.
func (v *View) pageLiveLocked() bool {
	invariants.Held(&v.mu)
	return v.page != nil && !v.closed && !v.detached && !v.sealed && v.page.state() == uint64(wire.StateLive)
}

// severalProcessors reports whether another thread can run while one spins.
func severalProcessors() bool { return min(runtime.GOMAXPROCS(0), runtime.NumCPU()) > 1 }
