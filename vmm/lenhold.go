package vmm

import (
	"fmt"
	"slices"
)

// LenHold holds what a Range shows: all bytes below Len, wherever Len goes. Safe for concurrent
// use.
type LenHold struct {
	g       *Range
	h       *hold
	raised  func(n uint64)
	release func()
}

// HoldLen holds all bytes below Len until Release, also those that come: SetLen downwards, Sleep
// and Close return ErrBusy, which says what the hold is for.
//
// raised, which may be nil, is called with a Len that has risen, in the call that raised it and
// before that returns, if all bytes below it are written: not while an AppendOn may not have run
// yet, nor for the bytes of that. After Release one call may still be under way. It runs with a lock
// held that orders changes of Len, so it must not wait, nor call methods of the range other than
// Len, Cap and Generation.
func (g *Range) HoldLen(what string, raised func(n uint64)) (*LenHold, error) {
	if g == nil || g.r == nil {
		return nil, g.wrap("hold length", 0, 0, g.checkOpen())
	}
	h := &LenHold{g: g, h: &hold{what: what, below: g}, raised: raised}
	stop, err := g.r.addHold(0, 0, h.h)
	if err != nil {
		return nil, g.wrap("hold length", 0, 0, err)
	}
	h.release = func() {
		g.setLenHolds(func(all []*LenHold) []*LenHold {
			return slices.DeleteFunc(all, func(o *LenHold) bool { return o == h })
		})
		stop()
	}
	g.setLenHolds(func(all []*LenHold) []*LenHold { return append(all, h) })
	return h, nil
}

// setLenHolds replaces the list, which is read without a lock.
func (g *Range) setLenHolds(change func([]*LenHold) []*LenHold) {
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	var all []*LenHold
	if old := g.lenHolds.Load(); old != nil {
		all = slices.Clone(*old)
	}
	all = change(all)
	g.lenHolds.Store(&all)
}

// tellLenHolds tells of a Len that has risen to n.
func (g *Range) tellLenHolds(n uint64) {
	all := g.lenHolds.Load()
	if all == nil || g.r.unwritten.Load() > 0 {
		return
	}
	for _, h := range *all {
		if h.raised != nil {
			h.raised(n)
		}
	}
}

// setLenOver is SetLen, for which one hold does not count.
func (g *Range) setLenOver(n uint64, mine *hold) error {
	err := g.retryWithMemory(func() error { return g.setLen(n, mine) })
	// lenMu is free by now: no append waits for this.
	g.requestGrowAhead()
	return g.wrap("set length", 0, n, err)
}

// SetLen is Range.SetLen for who has the hold: the bytes from n on are no longer held.
func (h *LenHold) SetLen(n uint64) error {
	if h == nil || h.g == nil {
		return fmt.Errorf("%w: no hold", ErrInvalid)
	}
	return h.g.setLenOver(n, h.h)
}

// Release ends the hold. Twice is fine, and so is a nil LenHold.
func (h *LenHold) Release() {
	if h != nil && h.g != nil {
		h.release()
	}
}
