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
// raised, which may be nil, is called with a Len that has risen since HoldLen returned, in the call
// that raised it and before that returns, if all bytes below it are written: not for an AppendOn,
// nor from then on until WaitWritten, or the close of its stream, has waited for that. After Release
// one call may still be under way. It runs with locks of the range held. So it must not wait or
// panic, and of the range and the hold it must call nothing but Len, Cap and Generation.
func (g *Range) HoldLen(what string, raised func(n uint64)) (*LenHold, error) {
	if g == nil || g.r == nil {
		return nil, g.wrap("hold length", 0, 0, g.checkOpen())
	}
	h := &hold{what: what, below: g, raised: raised}
	stop, err := g.r.addHold(0, 0, h)
	if err != nil {
		return nil, g.wrap("hold length", 0, 0, err)
	}
	g.listLenHolds()
	return &LenHold{g, h, stop}, nil
}

// listLenHolds lists those to be told of Len, for who holds no lock of the reservation.
func (g *Range) listLenHolds() {
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	var all []*hold
	for _, h := range g.r.holds {
		if h.below != nil && h.raised != nil {
			all = append(all, h)
		}
	}
	g.lenHolds.Store(&all)
}

// notifyLenHolds tells of a Len that has risen to n.
func (g *Range) notifyLenHolds(n uint64) {
	all := g.lenHolds.Load()
	if all == nil || g.r.pendingStreams.Load() > 0 {
		return
	}
	for _, h := range *all {
		h.raised(n)
	}
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
	h.g.listLenHolds()
}

// Release ends the hold. Twice is fine, and so is a nil LenHold.
func (h *LenHold) Release() {
	if h != nil && h.g != nil {
		h.stop()
		h.g.listLenHolds()
	}
}

// setLenExcept is SetLen, for which one hold does not count.
func (g *Range) setLenExcept(n uint64, except *hold) error {
	err := g.retryWithMemory(func() error { return g.setLen(n, except) })
	// lenMu is free by now: no append waits for this.
	g.requestGrowAhead()
	return g.wrap("set length", 0, n, err)
}
