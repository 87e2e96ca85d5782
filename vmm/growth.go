package vmm

import (
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
//
// The memory comes first: while it is obtained, reads, SetLen, Hold and appends that fit do not wait.
// growFor is the callers' way in, growAhead the one of the device's goroutine.

// Grow makes room for n more bytes beyond Len. A kernel may then write between Len and Cap, and SetLen
// shows what it wrote. Beyond Max it returns ErrFull. On error Len and contents are as they
// were, but Cap may have grown. With RangeOptions.Zero it may wait for an unlock; see LockSpans.
func (g *Range) Grow(n uint64) error {
	err := g.checkOpen()
	if err != nil {
		return g.wrap("grow", 0, n, err)
	}
	need, err := g.endWithin(g.len.Load(), n)
	if err == nil && need > g.cap.Load() {
		_, err = g.growFor("grow", n, need, func() (_, lacks uint64, err error) {
			if need <= g.cap.Load() {
				return 0, 0, nil
			}
			need, err = g.endWithin(g.len.Load(), n)
			return 0, need, err
		})
	}
	g.requestGrowAhead()
	return g.wrap("grow", 0, n, err)
}

// growFor brings Cap to what try lacks, and calls try again, until that lacks nothing. It returns what try
// returns, where the bytes go. The caller holds no lock. Functions of OnPressure get an OpError with op and size.
func (g *Range) growFor(op string, size, lacks uint64, try func() (at, lacks uint64, err error)) (at uint64, err error) {
	for lacks > 0 {
		if err = g.grow(op, size, lacks); err != nil {
			return g.len.Load(), err
		}
		if at, lacks, err = try(); err != nil {
			return at, err
		}
	}
	return at, nil
}

// grow brings Cap to need. When it returns, a Clip may have lowered Cap again, and retiring memory may have stopped the
// growth. So the caller checks.
func (g *Range) grow(op string, size, need uint64) error {
	if g.r.zeroed != zeroNone && g.r.retires(g.cap.Load(), need) {
		if err := g.waitForRetired(); err != nil {
			return err
		}
	}
	t := bank.NewTicket()
	err := g.growOnce(need)
	if err != nil {
		err = g.growAgain(t, op, size, need, err)
	}
	return err
}

// growAgain goes on with a growth that has failed with err. It is a function of its own so that a growth that
// works allocates nothing.
func (g *Range) growAgain(t bank.Ticket, op string, size, need uint64, err error) error {
	b := g.r.dev.state.bank
	wrap := needs(func(err error) error { return g.r.opError(op, 0, size, err) })
	if g.supply == nil {
		return t.Again(wrap, b, err, func() (*bank.Bank, error) { return b, g.growOnce(need) })
	}
	for err != nil {
		// The Supplier is called without a turn.
		if err = t.Again(wrap, b, err, func() (*bank.Bank, error) { return b, nil }); err != nil {
			return err
		}
		err = g.growOnce(need)
	}
	return nil
}

// growOnce is grow without waits for retired memory and without functions of OnPressure.
func (g *Range) growOnce(need uint64) error {
	if g.supply != nil {
		return g.growSupplied(need)
	}
	g.growMu.Lock()
	defer g.growMu.Unlock()
	return g.growLocked(need, forCaller)
}

// growLocked brings Cap to need. It returns nil below need if memory of the range retires meanwhile: the
// caller tries again, and takes that first. It needs g.growMu.
func (g *Range) growLocked(need uint64, purpose purpose) error {
	have, least, err := g.lackingLocked(need, purpose)
	if least == 0 {
		return err
	}
	if err = g.mapMoreLocked(have, least, purpose); err == nil {
		return nil
	}
	// The device's goroutine may have been unmapping the chunks above Cap, and the driver may have refused that.
	if end := g.cap.Load(); reclaimable(g.r, end, need) > end {
		return nil
	}
	return err
}

// lackingLocked takes back what the range has given up. Then it returns Cap, and how many bytes are lacking
// up to need. That is 0 if none are, if memory retires there, or with an error. It needs g.growMu.
func (g *Range) lackingLocked(need uint64, purpose purpose) (have, least uint64, err error) {
	invariants.Held(&g.growMu)
	if have = g.cap.Load(); need <= have {
		return have, 0, nil // another growth was faster
	}
	if err := g.r.checkOpen(); err != nil {
		return have, 0, err // a Close has overtaken the caller; it shall find no new memory
	}
	var end uint64
	if g.r.zeroed == zeroNone {
		end = reclaim(g.r, have, need)
	} else if end = reclaimable(g.r, have, need); g.r.retires(have, end) {
		return have, 0, nil
	}
	if purpose == forCaller {
		d := g.r.dev
		d.counters.Count(1, &d.counters.Growths, &g.r.counters.Growths)
	}
	if g.r.zeroed != zeroNone { // accessible above Cap, after a failure
		if _, err := g.r.zero(have, end-have); err != nil {
			return have, 0, err
		}
	}
	if g.raiseCapLocked(have, end, purpose); need <= end {
		return end, 0, nil
	}
	r := g.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.quarantineErrLocked(end); err != nil {
		return end, 0, err
	}
	return end, (need - end + g.unit - 1) / g.unit * g.unit, nil // both Max and Cap are multiples of the unit
}

// raiseCapLocked sets Cap, and notes in the device's history that it has risen. It needs g.growMu.
func (g *Range) raiseCapLocked(from, to uint64, purpose purpose) {
	invariants.Held(&g.growMu)
	g.cap.Store(to)
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

// mapMoreLocked obtains memory for a growth that lacks least bytes at have, and maps it. It needs g.growMu.
func (g *Range) mapMoreLocked(have, least uint64, purpose purpose) error {
	if err := g.r.dev.state.bank.CheckSize(have + least); err != nil {
		return err
	}
	want := least
	if purpose == forCaller { // growth ahead takes what is affordable and no more
		want = g.sizes.Growth(least, have, g.r.size-have)
	}
	err := g.mapBatchLocked(have, want, purpose)
	if errors.Is(err, ErrOutOfMemory) && g.cap.Load() == have && want > least {
		// What is left of the device's memory may still do for the need alone.
		err = g.mapBatchLocked(have, least, purpose)
	}
	return err
}

// mapBatchLocked is mapMoreLocked of want bytes. For a caller it is all or nothing; growth ahead keeps what it got.
func (g *Range) mapBatchLocked(have, want uint64, purpose purpose) error {
	d := g.r.dev
	ask := bank.Request{Prop: g.prop, Sizes: g.sizes, Fresh: g.noCache, Purpose: purpose, From: memsample.Source{Kind: memsample.Range, Name: g.opts.Name}}
	if purpose == forGrowAhead {
		ask.From.Made = g.made()
	}
	var buf [64]*memory
	batch, cached, err := d.account.Obtain(buf[:0], want, &ask)
	// The batch owns its memory until the mappings do. What was not mapped goes back.
	defer func() {
		bank.ReleaseAll(batch) //nolint:errcheck // mapped by now, or cached, or counted as quarantined
	}()
	if len(batch) == 0 {
		return err
	}
	if err := g.mapAtCapLocked(have, batch, purpose); err != nil {
		return err
	}
	if cached > 0 {
		d.counters.Count(uint64(cached), &d.counters.Hits, &g.r.counters.Hits)
	}
	return err
}

// mapAtCapLocked maps ms at Cap, which is have, all or nothing, and raises it. It needs g.growMu.
func (g *Range) mapAtCapLocked(have uint64, ms []*memory, purpose purpose) error {
	if err := g.r.mapChunks(have, ms, purpose); err != nil {
		return err
	}
	end := have
	for _, m := range ms {
		end += m.Size
	}
	g.raiseCapLocked(have, end, purpose)
	return nil
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
	if !g.growMu.TryLock() {   // other ranges must not wait for its holder; the next append or growth asks again
		return nil
	}
	defer g.growMu.Unlock()
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
	if g.checkOpen() == nil && g.supply == nil && g.growMu.TryLock() {
		defer g.growMu.Unlock()
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
// further, if others need the memory or a growth would have to wait. It needs g.growMu.
func (g *Range) goalAheadLocked(n uint64) (have, goal uint64) {
	invariants.Held(&g.growMu)
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
// growAhead. It needs g.growMu.
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
	d.counters.Lock()
	ours := g.r.counters.Retiring.Now + d.counters.Cached.Now
	d.counters.Unlock()
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
