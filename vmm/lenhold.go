package vmm

import "fmt"

// LenHold holds what a Range shows: all bytes below Len, wherever Len goes. Safe for concurrent
// use.
type LenHold struct {
	g    *Range
	h    *hold
	stop func()
}

// HoldLen holds all bytes below Len until Release, also those that come: SetLen downwards, Sleep
// and Close return ErrBusy, which says what the hold is for. It returns ErrClosed for a closed
// range, and ErrAsleep for one that sleeps.
//
// raised and changed tell whoever follows the range; either may be nil. raised is called with a Len
// that has risen since HoldLen returned, in the call that raised it and before that returns, if all
// bytes below it are written: not for an AppendOn, nor from then on until WaitWritten, or the close
// of its stream, has waited for that. It reports whether nothing is left to do for that Len. changed is
// called for all else that closes Changed, and for a Len that raised was not told of or is not done
// with. After Release one call may still be under way. Both run with locks of the range held. So they
// must not wait or panic, and of the range and the hold they must call nothing but Len, Cap and
// Generation.
func (g *Range) HoldLen(what string, raised func(n uint64) (done bool), changed func()) (*LenHold, error) {
	if g == nil || g.r == nil {
		return nil, g.wrap("hold length", 0, 0, g.checkOpen())
	}
	if raised == nil {
		raised = func(uint64) bool { return false }
	}
	if changed == nil {
		changed = func() {}
	}
	h := &hold{what: what, below: g, raised: raised, changed: changed}
	stop, err := g.r.addHold(0, 0, h)
	if err != nil {
		return nil, g.wrap("hold length", 0, 0, err)
	}
	g.r.listLenHolds()
	return &LenHold{g, h, stop}, nil
}

// listLenHolds lists those to be told of changes, for who holds no lock of the reservation.
func (r *Reservation) listLenHolds() {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*hold
	for _, h := range r.holds {
		if h.below != nil {
			all = append(all, h)
		}
	}
	r.lenHolds.Store(&all)
}

// toBeTold are those that listLenHolds has listed.
func (r *Reservation) toBeTold() []*hold {
	if all := r.lenHolds.Load(); all != nil {
		return *all
	}
	return nil
}

// notify tells of a change that the caller has made already. Of a Len that has risen notifyRaised
// tells.
func (r *Reservation) notify() {
	for _, h := range r.toBeTold() {
		h.changed()
	}
	r.wakeWaiters()
}

// notifyRaised tells of a Len that has risen to n.
func (r *Reservation) notifyRaised(n uint64) {
	written := r.pendingStreams.Load() == 0
	for _, h := range r.toBeTold() {
		if !written || !h.raised(n) {
			h.changed()
		}
	}
	r.wakeWaiters()
}

// SetLen is Range.SetLen, for which this hold does not count.
func (h *LenHold) SetLen(n uint64) error {
	if h == nil || h.g == nil {
		return fmt.Errorf("%w: no hold", ErrInvalid)
	}
	return h.g.setLenExcept(n, h.h)
}

// Fix ends that the hold goes where Len goes: from now on it holds the first n bytes, of those that
// it has held, and tells of nothing more. Nil is fine.
func (h *LenHold) Fix(n uint64) {
	if h == nil || h.g == nil {
		return
	}
	h.g.r.mu.Lock()
	h.h.end, h.h.below = min(n, h.h.currentEnd()), nil
	h.g.r.mu.Unlock()
	h.g.r.listLenHolds()
}

// Release ends the hold. Twice is fine, and so is a nil LenHold.
func (h *LenHold) Release() {
	if h != nil && h.g != nil {
		h.stop()
		h.g.r.listLenHolds()
	}
}

// setLenExcept is SetLen, for which one hold does not count.
func (g *Range) setLenExcept(n uint64, except *hold) error {
	err := g.retryWithMemory(func() error { return g.setLen(n, except) })
	// lenMu is free by now: no append waits for this.
	g.requestGrowAhead()
	return g.wrap("set length", 0, n, err)
}
