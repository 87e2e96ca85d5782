package pool

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// askAll asks the driver how far the streams are before they are locked: some memory may be free by now.
func (s *search) askAll() {
	s.waits++
	s.waiting.Add(1) // from now on a Sync gives nothing back
	if s.mayAsk() {
		s.ask((*stream).newestSmall)
	}
}

// lookLocked looks at all memory of the pool at one moment, with all streams locked: at what st may
// have, then, if ReuseInternalDependencies is on, at what it may have once it waits for other streams.
// What it finds it takes at once, so that no other call gets it. Chunks that have to move are unmapped
// and mapped when the streams are not locked any more. Lack of memory is no error here.
func (s *search) lookLocked() step { return s.lookWithLocked(true) }

// lookAgainLocked is lookLocked without new chunks.
func (s *search) lookAgainLocked() step { return s.lookWithLocked(false) }

// refused reports whether lookLocked has found a site, but the device has no new chunks for it.
func (s *search) refused() bool {
	return s.forBlock() && s.mapping.hole != nil && errors.Is(s.mapping.err, vmm.ErrOutOfMemory)
}

func (s *search) lookWithLocked(create bool) step {
	s.mapping = mapping{looked: true}
	l := look{search: s, follow: s.allows(ReuseFollowEvents), mayCreate: create}
	if !s.st.gone {
		l.run()
	}
	s.reasons = l.reasons()
	unlockAll(s.streams)
	switch {
	case s.pages != nil || s.block.in != nil:
		s.err = nil
	case s.mapping.hole != nil:
		return s.mapLocked(s.mapping)
	case s.mapping.runs != nil:
		return s.moveLocked()
	}
	return step{}
}

// look is one lookLocked. Pool.mu and the mu of all streams are held.
type look struct {
	*search
	follow    bool
	mayCreate bool     // new chunks may be had
	refusals  []string // why streams cannot be waited for
}

// run finds what the stream may have, the cheapest first: memory without a wait, chunks moved
// together, memory after a wait for other streams, a block of a larger class, and last chunks that
// are moved after a wait.
func (l *look) run() {
	l.gatherLocked(l.streams)
	if l.take() || l.takeSite(l.isIdle) {
		return
	}
	wait := l.allows(ReuseInternalDependencies)
	if wait {
		l.follow = true // from here on, also memory of streams that this one waits for
		// First a stream that has what is asked for: then one wait is enough.
		for _, t := range l.streams {
			if l.fits(t) && l.wait(t) && l.take() {
				return
			}
		}
		// No stream has it alone. After a wait for all that have something, their pieces are one run.
		for _, t := range l.streams {
			if t.hasFree() {
				l.wait(t)
			}
		}
		if l.take() {
			return
		}
	}
	// No slab has such a block, and there are no pages for a new slab: a larger block serves as well.
	for class := l.class + 1; l.class >= 0 && class < len(l.st.classes); class++ {
		if l.takeBlock(class) {
			return
		}
	}
	if wait {
		l.takeSite(l.usable)
	}
}

// take takes what the stream may have as it is: a block of a slab, or pages.
func (l *look) take() bool {
	if l.class >= 0 && l.takeBlock(l.class) {
		return true
	}
	l.releaseWholeSlabs()
	// Of the runs that are long enough the shortest, so that the long ones stay whole.
	var best *extent
	var length uint64
	l.eachRun(l.usable, func(first, _ *extent, size uint64) {
		if size >= l.size && (best == nil || size < length) {
			best, length = first, size
		}
	})
	if best == nil {
		return false
	}
	l.pages = l.takeSpanLocked(l.st, best, best.off, l.size)
	return true
}

// usable reports whether the stream may have a piece of free memory without a wait.
func (l *look) usable(e *extent) bool {
	return l.usableLocked(e, l.st, l.follow)
}

// isIdle reports whether a piece of memory is idle.
func (l *look) isIdle(e *extent) bool { return e.kind == kindFree && e.list == &l.idle }

// eachRun calls f for each longest run of neighbours that all are as ok says: with the first of
// them, what lies behind them, and how long they are. f may take what lies in the run.
func (l *look) eachRun(ok func(*extent) bool, f func(first, next *extent, size uint64)) {
	for i := range l.regions {
		for e := l.regions[i].first; e != nil; {
			if !ok(e) {
				e = e.next
				continue
			}
			first, size := e, uint64(0)
			for ; e != nil && ok(e); e = e.next {
				size += e.size
			}
			f(first, e, size)
		}
	}
}

// takeBlock takes a block of a class from a slab of any stream.
func (l *look) takeBlock(class int) bool {
	for _, t := range append([]*stream{l.st}, l.streams...) {
		if t == l.st || l.lendLocked(t, l.st, class, l.follow, lendMost, slabsToo) {
			if l.block, _ = l.st.takeAtHand(class, l.n); l.block.in != nil {
				return true
			}
		}
	}
	return false
}

// releaseWholeSlabs makes pages of the slabs all of whose blocks are free, also of those whose
// blocks were freed in several streams. While no stream may be made to wait it leaves blocks that
// another one, in which they were freed, may have at once.
func (l *look) releaseWholeSlabs() {
	follow := l.follow && l.allows(ReuseInternalDependencies)
	// Count by slab the blocks that were freed elsewhere and that the stream may have.
	waiting := map[*slab]int{}
	for _, t := range l.streams {
		before := l.reach(l.st, t, follow)
		for i := range t.classes {
			for _, b := range t.classes[i].remote.list() {
				if b.stamp < before {
					waiting[b.sl]++
				}
			}
		}
	}
	// Keep the slabs all of whose blocks are free: no others are in use, and the stream may have the rest.
	for sl, n := range waiting {
		if home := sl.home.Load(); sl.inUse() != n || sl.stamp >= l.reach(l.st, home, follow) {
			delete(waiting, sl)
		}
	}
	if len(waiting) == 0 {
		return
	}
	// Take those blocks from the streams that have them, then make pages of the slabs.
	for _, t := range l.streams {
		for i := range t.classes {
			t.classes[i].remote.drop(l.Pool, func(b remoteBlock) bool { return waiting[b.sl] > 0 })
		}
	}
	for sl := range waiting {
		home := sl.home.Load()
		home.classes[sl.class].forget(sl)
		home.slabs--
		sl.stamp = l.st.point()
		l.releaseSlabLocked(sl, l.st)
	}
}

// fits reports whether what was freed in a stream is enough by itself.
func (l *look) fits(t *stream) bool {
	if t == l.st {
		return false
	}
	if l.class >= 0 && t.classes[l.class].hasFree() {
		return true
	}
	for i := range t.free.bins {
		if t.free.bins[i].find(l.size, math.MaxUint64) != nil {
			return true
		}
	}
	return false
}

// wait has the stream wait for t; false if that cannot be.
func (l *look) wait(t *stream) bool {
	// No wait is needed if the stream comes after the last Free in t already.
	newest, _ := t.newestSmall()
	if t.free.newest != nil {
		newest = max(newest, t.free.newest.stamp)
	}
	if t == l.st || l.reachFollowing(l.st, t) > newest {
		return true
	}
	f, err := fences.Fence(t.s)
	if err == nil {
		defer f.Free()
		err = fences.WaitFence(l.st.s, f)
	}
	if err != nil { // a captured stream, for one: the error of the Alloc says so
		if text := fmt.Sprintf("stream %#x cannot be waited for: %v", inside.VMM.StreamNumber(t.s), err); !slices.Contains(l.refusals, text) {
			l.refusals = append(l.refusals, text)
		}
		return false
	}
	l.stats.Waits++
	return true
}

// takeSite finds a site for chunks that are as ok says, or new, and takes them: ok is isIdle, or usable for
// those, too, whose work has not ended. Of all sites it takes one for which the fewest chunks are
// needed, with those in front of the hole, which cannot move. If no hole is long enough it takes chunks to make one.
func (l *look) takeSite(ok func(*extent) bool) bool {
	// Choose the site: a hole alone, or a hole with free memory in front of it.
	best := site{}
	var before uint64 // bytes of best.before
	needed := 0
	consider := func(hole, first *extent, size uint64) {
		if size >= l.size {
			return
		}
		k := int((l.size - size + l.chunk - 1) / l.chunk) //nolint:gosec // not above the slots
		all := k + l.wholeChunks(hole.off-size, hole.off)
		if uint64(k)*l.chunk <= hole.size && (best.hole == nil || all < needed || all == needed && k < best.chunks) { //nolint:gosec // not negative
			best, before, needed = site{before: first, hole: hole, chunks: k}, size, all
		}
	}
	l.eachRun(func(e *extent) bool { return e.kind == kindHole }, func(hole, _ *extent, _ uint64) { consider(hole, nil, 0) })
	l.eachRun(l.usable, func(first, next *extent, size uint64) {
		if next != nil && next.kind == kindHole {
			consider(next, first, size)
		}
	})
	// Are there enough chunks for it: spare ones, new ones, and those of runs that are as ok says? The
	// run in front of the hole is not counted, because it is part of the site.
	has := len(l.spare)
	if l.mayCreate {
		has += l.most - int(l.chunks.Load())
	}
	if best.hole == nil {
		return l.makeRoom(ok, has)
	}
	l.eachRun(ok, func(first, _ *extent, size uint64) {
		if best.before == nil || first.off < best.before.off || first.off >= best.before.off+before {
			has += l.wholeChunks(first.off, first.off+size)
		}
	})
	if has < best.chunks {
		return false
	}
	// Take the addresses, and the chunks that are to be mapped there: idle ones first, since the others
	// have to be waited for.
	if best.before != nil {
		best.before = l.takeSpanLocked(l.st, best.before, best.before.off, before)
	}
	best.hole = l.takeHoleLocked(best.hole, uint64(best.chunks)*l.chunk) //nolint:gosec // not negative
	l.mapping = mapping{site: best, create: l.mayCreate, looked: true}
	left := best.chunks - len(l.spare)
	left -= l.takeChunks(l.isIdle, left)
	if l.takeChunks(ok, left) > 0 {
		l.mapping.wait = true
	}
	return true
}

// makeRoom takes all chunks that are as ok says, to unmap them, if there are enough with those that
// the pool has otherwise: addresses between them become longer holes. It reports whether it
// has taken any.
func (l *look) makeRoom(ok func(*extent) bool, has int) bool {
	// Without enough chunks for the size, unmapping them would not help.
	mapped := 0
	l.eachRun(ok, func(first, _ *extent, size uint64) { mapped += l.wholeChunks(first.off, first.off+size) })
	if mapped == 0 || uint64(has+mapped)*l.chunk < l.size { //nolint:gosec // not negative
		return false
	}
	l.takeChunks(ok, mapped)
	// Chunks whose work has not ended are waited for before they are unmapped.
	l.mapping.wait = slices.ContainsFunc(l.mapping.runs, func(e *extent) bool { return e.by != nil })
	return true
}

// takeChunks takes up to n whole chunks of the runs that are as ok says, and returns how many.
func (l *look) takeChunks(ok func(*extent) bool, n int) (taken int) {
	l.eachRun(ok, func(first, _ *extent, size uint64) { // only what fills whole chunks can be unmapped
		off := (first.off + l.chunk - 1) / l.chunk * l.chunk
		if m := min(n-taken, l.wholeChunks(first.off, first.off+size)); m > 0 {
			l.mapping.runs = append(l.mapping.runs, l.takeSpanLocked(l.st, first, off, uint64(m)*l.chunk)) //nolint:gosec // not negative
			taken += m
		}
	})
	return taken
}

// reasons say where memory is that the stream does not get.
func (l *look) reasons() (all []string) {
	add := func(n uint64, text string, args ...any) {
		if n > 0 {
			all = append(all, errtext.Size(n)+" "+fmt.Sprintf(text, args...))
		}
	}
	sum := l.sumLocked(l.streams)
	used := uint64(sum.used) //nolint:gosec // not negative
	add(used, "in blocks")
	add(l.slabBytes-(used-sum.pages), "free in slabs")
	add(l.idle.total(), "idle")
	// The streams that hold most, by name, and the others as one sum.
	const most = 4
	type share struct {
		t *stream
		n uint64
	}
	var shares []share
	for _, t := range l.streams {
		if n := t.free.total(); n > 0 {
			shares = append(shares, share{t, n})
		}
	}
	slices.SortFunc(shares, func(a, b share) int { return int(int64(b.n) - int64(a.n)) }) //nolint:gosec // far below 2^63
	var rest uint64
	for i, s := range shares {
		if i >= most {
			rest += s.n
			continue
		}
		add(s.n, "freed in stream %#x, whose work is not known to have ended", inside.VMM.StreamNumber(s.t.s))
	}
	add(rest, "freed in other such streams")
	add(l.largestLocked(), "in the longest free run")
	return append(all, l.refusals...)
}

// exhausted adds to an ErrOutOfMemory where memory is.
func (p *Pool) exhausted(err error, reasons []string) error {
	held := uint64(p.chunks.Load()) * p.chunk //nolint:gosec // not negative
	text := "the pool holds " + errtext.Size(held)
	if len(reasons) > 0 { // else it has none, or all of it has gone meanwhile
		text += ": " + strings.Join(reasons, ", ")
	}
	return fmt.Errorf("%w (%s)", err, text)
}
