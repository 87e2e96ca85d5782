package vmm

import (
	"errors"
	"slices"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// A range that promises zeros fills memory when it enters Cap, and what SetLen drops or a failed
// append has left. Nothing may write there any more by then. So memory that retires, and bytes
// that are unfilled, say whether they are quiet; where they are not, the call gives up its
// locks, waits (waitQuiet), and is tried again.

// errNotQuiet is that work or copies may still write to what a call is about to fill with
// zeros: its caller calls waitQuiet without locks, and tries again.
var errNotQuiet = errors.New("work may still write to it")

// reclaimZeroedLocked is reclaim of memory that is filled with zeros first, as long as it still
// retires: if that fails nothing has changed. It needs g.capMu.
func (g *Range) reclaimZeroedLocked(have, need uint64) (end uint64, err error) {
	invariants.Held(&g.capMu)
	r := g.r
	if reclaimable(r, have, need) == have {
		return have, nil
	}
	r.mappingMu.Lock() // until the slots are taken back no one unmaps them
	defer r.mappingMu.Unlock()
	end = reclaimable(r, have, need)
	if end > have && !r.quiet(have, end) {
		return have, errNotQuiet
	}
	if _, err := r.zero(have, end-have); err != nil {
		return have, err
	}
	return reclaim(r, have, end), nil
}

// quiet reports whether nothing uses what retires of [off, end).
func (r *Reservation) quiet(off, end uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.table.In(off, end) {
		if s.Retired != nil && !s.Retired.quiet {
			return false
		}
	}
	return true
}

// waitQuiet waits for work and copies that may still write where a range that promises zeros
// is to be filled: to what retires, and to what is unfilled. The caller holds no lock.
func (g *Range) waitQuiet() error {
	r := g.r
	// What copies that have looked at Len or Cap before may still write to.
	var copied []Span // by offset
	g.lenMu.Lock()
	u := g.unfilled
	if u != nil && u.dropped {
		copied = append(copied, Span{Addr: Ptr(u.off), Size: u.end - u.off})
	}
	g.lenMu.Unlock()
	var retired []*retirement
	r.mu.Lock()
	for _, s := range r.table.All() {
		if t := s.Retired; t != nil && !slices.Contains(retired, t) {
			retired = append(retired, t)
			// What is left to the device's goroutine has been waited for.
			if !slices.Contains(r.retirements, t) {
				copied = append(copied, Span{Addr: Ptr(t.off), Size: t.size})
			}
		}
	}
	r.mu.Unlock()
	for _, x := range copied { // first: they may still queue work
		r.waitForCopies(uint64(x.Addr), x.Size)
	}
	if err := r.waitForWork(); err != nil {
		return err
	}
	if u != nil {
		g.lenMu.Lock()
		u.quiet = true
		g.lenMu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range retired {
		t.quiet = true
	}
	return nil
}

// unfilled is what a range that promises zeros has to fill with them before Len changes next:
// what a failed append has left, or what SetLen has dropped.
type unfilled struct {
	off, end uint64
	dropped  bool // by SetLen: copies that had looked at Len before may still write
	quiet    bool // nothing writes there any more
}

// leaveUnfilledLocked adds [off, end) to what is unfilled, in a range that promises zeros. It
// needs g.lenMu.
func (g *Range) leaveUnfilledLocked(off, end uint64, dropped bool) {
	invariants.Held(&g.lenMu)
	if g.r.zeroed == zeroNone || off == end {
		return
	}
	u := &unfilled{off: off, end: end, dropped: dropped}
	if was := g.unfilled; was != nil {
		u.off, u.end, u.dropped = min(off, was.off), max(end, was.end), dropped || was.dropped
	}
	g.unfilled = u
}

// setLen is the part of SetLen that moves Len, which except does not hold, and fills what it drops.
func (g *Range) setLen(n uint64, except *hold) error {
	fills := g.r.zeroed != zeroNone && n < g.len.Load()
	if fills { // no Clip, Sleep or Close comes between
		if err := g.r.checkOpen(); err != nil {
			return err // without waiting for a Close that is under way
		}
		g.r.closeMu.Lock()
		defer g.r.closeMu.Unlock()
	}
	dropped, err := g.moveLen(n, except)
	if err != nil || !fills || dropped == nil {
		return err
	}
	// What is dropped is filled after Len has moved, so that no reader sees the zeros, and
	// after the work and the writes that had looked at Len before. Whatever else moves Len
	// meanwhile fills it first.
	if err = g.fill(); err == nil {
		return nil
	}
	g.lenMu.Lock()
	defer g.lenMu.Unlock()
	if g.unfilled != dropped { // an append has filled it, and may have moved Len
		return nil
	}
	g.unfilled = nil
	g.publishLenLocked(dropped.end)
	return err
}

// moveLen moves Len, and returns what it has dropped and is unfilled; nil if that is nothing.
func (g *Range) moveLen(n uint64, except *hold) (dropped *unfilled, err error) {
	g.lenMu.Lock()
	defer g.lenMu.Unlock()
	old := g.len.Load()
	if err := g.fillLocked(); err != nil {
		return nil, err
	}
	if err := g.setLenLocked(n, except); err != nil {
		return nil, err
	}
	g.leaveUnfilledLocked(n, max(n, old), true)
	return g.unfilled, nil
}

// fill fills what is unfilled. The caller holds neither lenMu nor what comes after it.
func (g *Range) fill() error {
	for {
		g.lenMu.Lock()
		err := g.fillLocked()
		g.lenMu.Unlock()
		if !errors.Is(err, errNotQuiet) {
			return err
		}
		if err = g.waitQuiet(); err != nil {
			return err
		}
	}
}

// fillLocked fills what is unfilled; errNotQuiet if something may still write there. It needs
// g.lenMu.
func (g *Range) fillLocked() error {
	invariants.Held(&g.lenMu)
	u := g.unfilled
	if u == nil {
		return nil
	}
	if !u.quiet {
		return errNotQuiet
	}
	_, epoch, err := g.beginCopy()
	if err != nil {
		return err
	}
	defer g.r.copies.end(epoch)
	// What a Clip takes is filled when it comes back. It lowers Cap before it waits for
	// copies, so what lies below stays mapped.
	if end := min(u.end, g.cap.Load()); end > u.off {
		if _, err := g.r.zero(u.off, end-u.off); err != nil {
			return err
		}
	}
	g.unfilled = nil
	return nil
}

// leftUnfilled is the error of an append that may have written a part of its bytes.
type leftUnfilled struct{ error }

func (e leftUnfilled) Unwrap() error { return e.error }

// fillAfter fills with zeros what an append that failed with err has left unfilled.
func (g *Range) fillAfter(err error) error {
	var left leftUnfilled
	if !errors.As(err, &left) {
		return err
	}
	return joinErr(left.error, "and filling with zeros", g.fill())
}

// mayFill reports whether a fill may still run that could not be waited for.
func (s *deviceState) mayFill() bool {
	o := s.openDevice.Load()
	return o != nil && o.stage.maybeBusy.Load() > 0
}

// syncFills waits for fills that may still run: no fence of a retirement covers one that came
// after it.
func (s *deviceState) syncFills() error {
	lock.Waits()
	o := s.openDevice.Load()
	if !s.mayFill() || !o.Retain() {
		return nil
	}
	defer o.Release()
	if err := o.stage.syncMaybeBusy(); !lost(err) {
		return err
	}
	return nil
}

// zeroMemory fills memory that is mapped from off on with zeros, and waits for that. If
// that fails, mayStillFill reports whether the fill may still run. It needs r.mappingMu.
func (r *Reservation) zeroMemory(off uint64, ms []*memory, which zeroing) (mayStillFill bool, err error) {
	from := off // of a stretch to fill, which ends at off
	for _, m := range ms {
		if which == zeroRecycled && !m.recycled {
			if mayStillFill, err = r.zero(from, off-from); err != nil {
				return mayStillFill, err
			}
			from = off + m.size
		}
		off += m.size
	}
	return r.zero(from, off-from)
}

// zero fills n bytes from off on with zeros, and waits for that. If that fails, mayStillFill
// reports whether the fill may still run.
func (r *Reservation) zero(off, n uint64) (mayStillFill bool, err error) {
	if n == 0 {
		return false, nil
	}
	o, err := r.dev.state.ensureOpen()
	if err != nil {
		return false, err
	}
	s := o.CopyStream()
	if err := o.Fill(r.ptr+Ptr(off), 0, 1, n, s); err != nil {
		return false, err
	}
	if err = o.SyncStream(s); err != nil && !lost(err) {
		if mayStillFill = o.SyncStream(s) != nil; mayStillFill {
			o.stage.noteFill()
		}
	}
	return mayStillFill, err
}
