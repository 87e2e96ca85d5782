package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm/internal/bank"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
	"github.com/cuvmm/cuvmm/vmm/internal/slots"
)

// A range takes memory from where it is cheapest, in this order:
//
//  1. what it has given up itself, while it retires: no driver call
//  2. cached memory of the device: mapped, not created
//  3. new memory
//
// With RangeOptions.Supplier that replaces the last two: see supply.go.
// ensure is the caller's way in, growAhead the one of the device's goroutine.

// Grow makes room for n more bytes beyond Len. A kernel may then write between Len and Cap, and SetLen
// shows what it wrote. Beyond Max it returns ErrFull. On error nothing has changed, except that retiring
// memory may be back in Cap. With RangeOptions.Zero it may wait for an unlock; see LockSpans.
func (g *Range) Grow(n uint64) error {
	if err := g.checkOpen(); err != nil {
		return g.wrap("grow", 0, n, err)
	}
	return g.wrap("grow", 0, n, g.retryWithMemory("grow", n, func() error {
		need, err := g.endWithin(g.len.Load(), n)
		if err == nil && need > g.cap.Load() {
			err = g.ensure(need)
		}
		g.requestGrowAhead()
		return err
	}))
}

// ensure brings Cap to at least need.
func (g *Range) ensure(need uint64) error {
	g.capMu.Lock()
	defer g.capMu.Unlock()
	if need <= g.cap.Load() {
		return nil // nothing to do, or the device's goroutine was faster
	}
	if err := g.r.checkOpen(); err != nil {
		return err // a Close has overtaken the caller; it shall find no new memory
	}
	err := g.growLocked(need, forCaller)
	if !errors.Is(err, errRetiring) { // else it comes again
		d := g.r.dev
		d.counters.Count(1, &d.counters.Growths, &g.r.counters.Growths)
	}
	if bank.Lacks(err) {
		return growthLacks{err, need}
	}
	return err
}

// growthLacks is an ErrOutOfMemory of a growth to need.
type growthLacks struct {
	error
	need uint64
}

func (e growthLacks) Unwrap() error { return e.error }

// growLocked brings Cap to at least need. It needs g.capMu.
func (g *Range) growLocked(need uint64, purpose purpose) error {
	invariants.Held(&g.capMu)
	was := g.cap.Load()
	defer func() { g.noteGrowth(was, g.cap.Load(), purpose) }()
	for {
		have := g.cap.Load()
		if g.r.zeroed != zeroNone {
			var err error
			if have, err = g.fillAboveCapLocked(have, need); err != nil {
				return err
			}
		} else {
			have = reclaim(g.r, have, need)
		}
		g.cap.Store(have)
		if need <= have {
			return nil
		}
		err := g.mapMoreLocked(have, need, purpose)
		if err == nil {
			return nil
		}
		// The device's goroutine may have been unmapping the chunks above Cap, and the
		// driver may have refused that. Then they are taken first.
		have = g.cap.Load()
		if reclaimable(g.r, have, need) == have {
			return err
		}
	}
}

// noteGrowth notes in the device's history that Cap has risen.
func (g *Range) noteGrowth(from, to uint64, purpose purpose) {
	switch {
	case to <= from:
	case purpose == forGrowAhead:
		g.r.dev.history.AddMadeAt(history.Grow, uint64(g.r.ptr)+from, to-from, g.r.name, g.made)
	default:
		g.r.note(history.Grow, from, to-from)
	}
}

// made is who made the range.
func (g *Range) made() []uintptr {
	d := g.r.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	made := d.unclosed[g.r].made
	return made[:]
}

// mapMoreLocked is the part of growLocked that needs memory. It raises Cap by what it maps.
func (g *Range) mapMoreLocked(have, need uint64, purpose purpose) error {
	invariants.Held(&g.capMu)
	r := g.r
	r.mu.Lock()
	var err error
	if r.counters.Quarantined.Now > 0 {
		err = r.quarantineErrLocked(have)
	}
	r.mu.Unlock()
	if err != nil {
		return err
	}
	least := (need - have + g.unit - 1) / g.unit * g.unit // both Max and Cap are multiples of the unit
	if g.supply != nil {
		return &lackingMemory{off: have, least: least, need: need}
	}
	if err := r.dev.state.bank.CheckSize(have + least); err != nil {
		return err
	}
	want := least
	if purpose == forCaller { // growth ahead takes what is affordable and no more
		want = g.sizes.Growth(least, have, r.size-have)
	}
	got, err := g.mapBatchLocked(have, want, purpose)
	if errors.Is(err, ErrOutOfMemory) && got == 0 && want > least {
		// What is left of the device's memory may still do for the need alone.
		got, err = g.mapBatchLocked(have, least, purpose)
	}
	g.cap.Store(have + got)
	return err
}

// mapBatchLocked maps want bytes of memory at off: cached chunks first, new ones for the
// rest. For a caller it is all or nothing; growth ahead keeps what it got.
func (g *Range) mapBatchLocked(off, want uint64, purpose purpose) (got uint64, err error) {
	invariants.Held(&g.capMu)
	var buf [64]*memory
	batch := buf[:0]
	// The batch owns its memory until the mappings do. What was not mapped goes back.
	defer func() {
		bank.ReleaseAll(batch) //nolint:errcheck // mapped by now, or cached, or counted as quarantined
	}()
	d, p := g.r.dev, g.prop
	from := &memsample.Source{Kind: memsample.Range, Name: g.opts.Name}
	if purpose == forGrowAhead {
		from.Made = g.made()
	}
	left := want
	for left > 0 && !g.noCache {
		// The driver sets access chunk by chunk, so many small chunks cost more than new
		// memory. With an eighth as the least, a growth takes a few dozen.
		m := d.account.Cached(p, cmp.Or(g.opts.Chunk, left/8), min(left, cmp.Or(g.opts.Chunk, maxChunk)), from)
		if m == nil {
			break
		}
		batch = append(batch, m)
		left -= m.Size
	}
	hits := uint64(len(batch))
	var charged uint64
	if purpose == forCaller && left > 0 { // at once, so that what is beyond the limit creates nothing
		for size := range g.sizes.Chunks(left) {
			charged += size
		}
		if err := d.state.bank.Charge(charged, purpose); err != nil {
			return 0, err
		}
		defer func() { d.state.bank.Uncharge(charged) }()
	}
	var createErr error
	for size := range g.sizes.Chunks(left) {
		var m *memory
		if purpose == forGrowAhead {
			m, _, createErr = d.account.Create(size, p, purpose, from)
		} else if m, createErr = d.account.CreateCharged(size, p, purpose, from); createErr == nil {
			charged -= size
		}
		if createErr != nil {
			break
		}
		batch = append(batch, m)
		left -= min(left, size)
	}
	if createErr != nil && (purpose == forCaller || len(batch) == 0) {
		return 0, createErr
	}
	if err := g.r.mapChunks(off, batch, purpose); err != nil {
		return 0, err
	}
	if hits > 0 {
		d.counters.Count(hits, &d.counters.Hits, &g.r.counters.Hits)
	}
	return want - left, createErr
}

// reclaimable is how far reclaim would come.
func reclaimable(r *Reservation, off, need uint64) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.table.Len(); n == 0 || r.table.At(n-1).Off < off || r.checkOpen() != nil {
		return off
	}
	for _, s := range r.table.In(off, need) {
		if s.Off != off || s.State != slots.Retiring && s.State != slots.Accessible {
			break
		}
		off = s.End()
	}
	return off
}

// reclaim makes retiring slots at off accessible again, front to back, until need is
// reached, and returns how far the accessible part goes then. A retirement of which
// nothing is left is forgotten, its events free.
func reclaim(r *Reservation, off, need uint64) uint64 {
	r.mu.Lock()
	n := r.table.Len()
	if n == 0 || r.table.At(n-1).Off < off || r.checkOpen() != nil { // nothing lies above off, mostly
		r.mu.Unlock()
		return off
	}
	var fences []order.Fence
	var taken uint64
	for _, s := range r.table.In(off, need) {
		// Accessible above Cap: its unmapping failed, or the fill when it was mapped.
		if s.Off != off || s.State != slots.Retiring && s.State != slots.Accessible {
			break
		}
		if s.State == slots.Retiring {
			taken += s.Size
			fences = r.unretireLocked(s, fences)
		}
		off = s.End()
	}
	r.mu.Unlock()
	if taken > 0 {
		freeFences(fences) // it takes other locks, and may close a device: not under mu
		d := r.dev
		d.counters.Count(taken, &d.counters.Reclaimed, &r.counters.Reclaimed)
	}
	return off
}

// growAhead is what the device's goroutine does for a range in its queue.
// It returns an error if the range has less than it should, for the first time in a row.
func (g *Range) growAhead() error {
	g.aheadWanted.Store(false) // before looking, so that no change goes unseen
	if !g.capMu.TryLock() {    // other ranges must not wait for its holder; the next append or growth asks again
		return nil
	}
	defer g.capMu.Unlock()
	have, goal := g.goalAheadLocked(g.opts.GrowAhead)
	if goal == have && have-min(have, g.len.Load()) <= g.opts.GrowAhead/2 {
		// It may not have more now. So that not every append asks, the next that does comes later.
		g.aheadWanted.Store(true)
		time.AfterFunc(minSweepInterval, func() { g.aheadWanted.Store(false) })
	}
	return g.growAheadLocked(have, goal)
}

// growAheadBy is door.VMM.GrowAhead.
func (g *Range) growAheadBy(n uint64) (giveBack func(keep uint64, s *Stream)) {
	var from, end uint64
	if g.checkOpen() == nil && g.supply == nil && g.capMu.TryLock() {
		defer g.capMu.Unlock()
		have, goal := g.goalAheadLocked(n)
		if reclaimable(g.r, have, goal) == have {
			g.r.dev.reportFailure(g.growAheadLocked(have, goal))
			from, end = have, g.cap.Load()
		}
	}
	return func(keep uint64, s *Stream) {
		if from < end && s != nil {
			g.clipAhead(from, end, keep, s)
		}
	}
}

// goalAheadLocked is Cap, and how far growth ahead by n bytes beyond Len is to bring it: no
// further, if others need the memory or a growth would have to wait. It needs g.capMu.
func (g *Range) goalAheadLocked(n uint64) (have, goal uint64) {
	invariants.Held(&g.capMu)
	end, have := g.len.Load(), g.cap.Load()
	goal = end + min(n, g.r.size-end)
	if goal <= have || g.r.checkOpen() != nil || g.r.dev.state.bank.IsUnderPressure() {
		return have, have
	}
	// What a Clip gave up can be filled only after the work that used it. The other ranges
	// of the device would wait for that, too; so the next append takes it back.
	if g.r.zeroed != zeroNone && reclaimable(g.r, have, goal) > have {
		return have, have
	}
	return have, goal
}

// growAheadLocked brings Cap from have to goal, or as far as memory is free. Its error is as for
// growAhead. It needs g.capMu.
func (g *Range) growAheadLocked(have, goal uint64) error {
	if goal == have {
		return nil
	}
	within := g.affordable(have, goal)
	var err error
	if within > have {
		err = g.growLocked(within, forGrowAhead)
	}
	if err == nil && within < goal {
		err = fmt.Errorf("%w: %s of %s can be had without taking it from others", ErrOutOfMemory, errtext.Size(within-have), errtext.Size(goal-have))
	}
	return g.endGrowAhead(have, goal, err)
}

// endGrowAhead counts a growth ahead that ended with err. It returns the error if it is the
// first in a row.
func (g *Range) endGrowAhead(have, goal uint64, err error) error {
	d := g.r.dev
	if err == nil {
		g.aheadPause.Store(nil)
		d.counters.Count(1, &d.counters.GrowAheads, &g.r.counters.GrowAheads)
		return nil
	}
	again := time.Now().Add(afterFailure)
	before := g.aheadPause.Swap(&again)
	d.counters.Count(1, &d.counters.GrowAheadFailures, &g.r.counters.GrowAheadFailures)
	if before != nil {
		return nil
	}
	return g.r.opError("grow ahead", have, goal-have, err)
}

// afterFailure is how long growth ahead pauses after it found less memory than it wanted. A growth
// that needs the memory tries for itself.
const afterFailure = 100 * time.Millisecond

// aheadLeaves is which part of the device's memory, and of the limit, growth ahead
// leaves to callers that cannot wait.
const aheadLeaves = 16

// affordable is how far towards goal growth ahead may bring Cap, given what is free
// now. It asks the driver only if a context is open; it makes none.
func (g *Range) affordable(have, goal uint64) uint64 {
	d := g.r.dev
	spare := d.state.bank.Left(aheadLeaves)
	if o := d.state.openDevice.Load(); o != nil && o.Retain() {
		free, total, err := o.MemInfo()
		o.Release()
		if err == nil {
			spare = min(spare, free-min(free, total/aheadLeaves))
		}
	}
	// What retires here, and what is cached, takes no new memory.
	release := d.counters.Hold()
	ours := g.r.counters.Retiring.Now + d.counters.Cached.Now
	release()
	if left := goal - have; left > ours && left-ours > spare {
		return have + (ours+spare)/g.unit*g.unit
	}
	return goal
}

// requestGrowAhead has the device's goroutine grow the range if half of GrowAhead is used up.
func (g *Range) requestGrowAhead() {
	have := g.cap.Load()
	ready := have - min(g.len.Load(), have)
	if ready > g.opts.GrowAhead/2 || g.opts.GrowAhead == 0 || have == g.r.size || g.aheadWanted.Load() {
		return
	}
	if pause := g.aheadPause.Load(); pause != nil && time.Now().Before(*pause) {
		return
	}
	if g.aheadWanted.CompareAndSwap(false, true) { // so it is in the queue once
		g.r.dev.queueGrowth(g)
	}
}
