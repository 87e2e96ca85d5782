package vmm

import "github.com/cuvmm/cuvmm/vmm/internal/holds"

// lenHold is a door.LenHold.
type lenHold struct {
	g    *Range
	h    *holds.Hold
	stop func()
}

// holdLen is door.VMM.HoldLen.
func (g *Range) holdLen(what string, raised func(n uint64) (done bool), changed func()) (*lenHold, error) {
	if g == nil || g.r == nil {
		return nil, g.wrap("hold length", 0, 0, g.checkOpen())
	}
	if raised == nil {
		raised = func(uint64) bool { return false }
	}
	if changed == nil {
		changed = func() {}
	}
	h := &holds.Hold{What: what, Below: g.Len, Raised: raised, Changed: changed}
	stop, err := g.r.addHold(0, 0, h)
	if err != nil {
		return nil, g.wrap("hold length", 0, 0, err)
	}
	return &lenHold{g, h, stop}, nil
}

// notify tells of a change that the caller has made already. Of a Len that has risen notifyRaised
// tells.
func (r *Reservation) notify() {
	for _, h := range r.holds.ToTell() {
		h.Changed()
	}
	r.wakeWaiters()
}

// notifyRaised tells of a Len that has risen to n.
func (r *Reservation) notifyRaised(n uint64) {
	written := !r.users.Pending()
	for _, h := range r.holds.ToTell() {
		if !written || !h.Raised(n) {
			h.Changed()
		}
	}
	r.wakeWaiters()
}

// SetLen is door.LenHold.SetLen.
func (h *lenHold) SetLen(n uint64) error { return h.g.setLenExcept(n, h.h) }

// Fix is door.LenHold.Fix.
func (h *lenHold) Fix(n uint64) {
	h.g.r.mu.Lock()
	defer h.g.r.mu.Unlock()
	h.g.r.holds.Fix(h.h, n)
}

// Release is door.LenHold.Release.
func (h *lenHold) Release() { h.stop() }

// setLenExcept is SetLen, for which one hold does not count.
func (g *Range) setLenExcept(n uint64, except *holds.Hold) error {
	err := g.moveLen(n, except)
	// lenMu is free by now: no append waits for this.
	g.requestGrowAhead()
	return g.wrap("set length", 0, n, err)
}
