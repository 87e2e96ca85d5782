package pool

import (
	"errors"
	"fmt"
	"math"

	"github.com/cuvmm/cuvmm/vmm"
)

// alloc is Alloc for what allocSmall does not find.
func (p *Pool) alloc(st *stream, n uint64) (Block, error) {
	switch {
	case n == 0:
		return Block{in: &p.none}, nil
	case n <= p.classes.most:
		return p.allocInSlab(st, p.classes.of(n), n)
	case n > uint64(p.most)*p.chunk: //nolint:gosec // not negative
		return Block{}, fmt.Errorf("%w: the pool's maximum is %d bytes", vmm.ErrOutOfMemory, uint64(p.most)*p.chunk) //nolint:gosec // not negative
	}
	size := (n + p.unit - 1) / p.unit * p.unit
	r := p.regionOf(size)
	p.mu.Lock()
	defer p.mu.Unlock()
	e, err := p.takeExtentLocked(st, size, r)
	if err != nil {
		return Block{}, err
	}
	p.longSeq++
	e.kind = kindBlock
	e.usedBy(st)
	e.seq.Store(p.longSeq)
	p.setOwnersLocked(e, &e.owner)
	p.long.blocks++
	p.long.allocs++
	p.used.add(int64(size)) //nolint:gosec // far below 2^63
	return Block{ptr: p.base + vmm.Ptr(e.off), size: n, in: &e.owner, seq: p.longSeq}, nil
}

// allocInSlab allocates a block of a class, from a new slab if there must be one.
func (p *Pool) allocInSlab(st *stream, class int, n uint64) (Block, error) {
	if b, err := st.allocAtHand(class, n); err != nil || b.in != nil {
		return b, err
	}
	// Blocks of st's slabs that were freed in other streams, and slabs of closed streams.
	if p.collect(st, class) || p.adopt(st, class) {
		if b, err := st.allocAtHand(class, n); err != nil || b.in != nil {
			return b, err
		}
	}
	size := (slabSize(p.classes.sizes[class]) + p.unit - 1) / p.unit * p.unit
	r := p.regionOf(size)
	p.mu.Lock()
	e, err := p.takeExtentLocked(st, size, r)
	if err != nil {
		p.mu.Unlock()
		return Block{}, err
	}
	e.kind = kindSlab
	sl := newSlab(p, e, class, st)
	p.setOwnersLocked(e, &sl.owner)
	p.mu.Unlock()

	st.mu.Lock()
	if st.gone {
		st.mu.Unlock()
		p.releaseSlab(sl, nil)
		return Block{}, st.goneErr()
	}
	defer st.mu.Unlock()
	st.slabs++
	c := &st.classes[class]
	i := sl.take()
	if c.current == nil || c.current.full() {
		c.current = sl
	} else if !sl.full() {
		c.quarter(p, sl).add(sl) // another goroutine has made one meanwhile
	}
	return st.blockIn(sl, i, n), nil
}

// allocAtHand allocates from what st has; no block if it has none.
func (st *stream) allocAtHand(class int, n uint64) (Block, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.gone {
		return Block{}, st.goneErr()
	}
	c := &st.classes[class]
	if k := len(c.foreign); k > 0 {
		f := c.foreign[k-1]
		c.foreign = c.foreign[:k-1]
		return st.blockIn(f.sl, f.i, n), nil
	}
	if sl := c.current; sl == nil || sl.full() {
		if c.next() == nil {
			return Block{}, nil
		}
	}
	return st.blockIn(c.current, c.current.take(), n), nil
}

// collect gives blocks that were freed in other streams back to their slabs, if their work
// has ended, or precedes that of st, whose slab it is. It says whether there were any.
func (p *Pool) collect(st *stream, class int) (some bool) {
	for _, t := range p.list() {
		if t == st {
			continue
		}
		t.mu.Lock()
		waiting := len(t.classes[class].foreign) > 0
		t.mu.Unlock()
		if !waiting {
			continue
		}
		if p.giveForeign(t, class, st) {
			some = true
			continue
		}
		if p.allows(ReuseOpportunistic) {
			p.mu.Lock()
			p.askStreamLocked(t, t.s.Point())
			p.mu.Unlock()
			some = p.giveForeign(t, class, st) || some
		}
	}
	return some
}

// giveForeign gives the blocks of a class that were freed in t back to their slabs, as far
// as their work has ended, or precedes that of st. It says whether st has one now.
func (p *Pool) giveForeign(t *stream, class int, st *stream) (some bool) {
	done := t.s.Finished()
	var before uint64
	if st != nil && p.allows(ReuseFollowEvents) {
		before = st.s.After(t.s)
	}
	if p.hooks.noOrder {
		done = math.MaxUint64
	}
	t.mu.Lock()
	c := &t.classes[class]
	var out []foreign
	kept := c.foreign[:0]
	for _, f := range c.foreign {
		if f.stamp < done || f.stamp < before && f.sl.home.Load() == st {
			out = append(out, f)
		} else {
			kept = append(kept, f)
		}
	}
	c.foreign = kept
	t.mu.Unlock()
	for _, f := range out {
		home := f.sl.lockHome()
		some = some || home == st
		if f.stamp >= done {
			f.sl.stamp = home.s.Point() // home waits for it, others do not
		}
		p.giveLocked(home, f.sl, f.i)
	}
	return some
}

// adopt makes a slab of a closed stream one of st; false if there is none.
func (p *Pool) adopt(st *stream, class int) bool {
	for _, t := range p.list() {
		if t == st || t.open() {
			continue
		}
		if p.adoptFrom(t, st, class) {
			return true
		}
	}
	return false
}

func (p *Pool) adoptFrom(t, st *stream, class int) bool {
	// Of two streams' locks an open one's comes first. A closed stream takes no other's.
	st.mu.Lock()
	defer st.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	from, to := &t.classes[class], &st.classes[class]
	sl := from.current
	if sl == nil || sl.full() {
		sl = from.next()
	}
	if st.gone || sl == nil {
		return false
	}
	from.current = nil
	sl.home.Store(st)
	sl.stamp = 0 // the work of a closed stream has ended
	t.slabs--
	st.slabs++
	to.quarter(p, sl).add(sl)
	return true
}

// releaseEmpty gives back the slabs of st that have no blocks.
func (p *Pool) releaseEmpty(st *stream) {
	var out []*slab
	st.mu.Lock()
	for i := range st.classes {
		c := &st.classes[i]
		if sl := c.current; sl != nil && sl.inUse() == 0 {
			out, c.current = append(out, sl), nil
		}
		if c.empty != nil {
			out, c.empty = append(out, c.empty), nil
		}
	}
	st.slabs -= len(out)
	st.mu.Unlock()
	for _, sl := range out {
		p.releaseSlab(sl, st)
	}
}

// gather gives back to the heap what the streams keep and no block uses.
func (p *Pool) gather() {
	for _, t := range p.list() {
		for class := range t.classes {
			p.giveForeign(t, class, nil)
		}
	}
	for _, t := range p.list() {
		p.releaseEmpty(t)
	}
}

// takeExtentLocked takes size bytes for st.
func (p *Pool) takeExtentLocked(st *stream, size uint64, r *region) (*extent, error) {
	if p.closed.Load() {
		return nil, errClosed
	}
	if e := p.findLocked(st, size, r, p.allows(ReuseFollowEvents)); e != nil {
		return e, nil
	}
	p.busy++
	defer p.doneLocked()
	return p.findSlowlyLocked(st, size, r)
}

// doneLocked ends a call that counts as busy.
func (p *Pool) doneLocked() {
	if p.busy--; p.busy == 0 {
		p.notBusy.Broadcast()
	}
}

// findSlowlyLocked finds size bytes for st, in the order that Alloc documents. It releases
// p.mu meanwhile.
func (p *Pool) findSlowlyLocked(st *stream, size uint64, r *region) (*extent, error) {
	for {
		if e := p.searchLocked(st, size, r); e != nil {
			return e, nil
		}
		// Memory that there is comes before new memory, also where blocks of other sizes lie.
		e, err := p.growLocked(st, size, r, false)
		for i := 1; i < regionCount && errors.Is(err, errMustCreate); i++ {
			if e = p.findLocked(st, size, &p.regions[(r.index+i)%regionCount], p.allows(ReuseFollowEvents)); e != nil {
				return e, nil
			}
		}
		if errors.Is(err, errMustCreate) {
			e, err = p.growLocked(st, size, r, true)
		}
		if err == nil || !errors.Is(err, vmm.ErrOutOfMemory) {
			return e, err
		}
		if p.allows(ReuseInternalDependencies) {
			if e := p.waitLocked(st, size, r); e != nil {
				return e, nil
			}
		}
		if p.onOOM == nil {
			return nil, p.exhaustedLocked(err)
		}
		p.doneLocked() // it may close the pool
		p.mu.Unlock()
		retry := p.onOOM(st.s, size)
		p.mu.Lock()
		p.busy++
		if p.closed.Load() {
			return nil, errClosed
		}
		if !retry {
			return nil, p.exhaustedLocked(err)
		}
	}
}

// exhaustedLocked adds to an ErrOutOfMemory what is free.
func (p *Pool) exhaustedLocked(err error) error {
	free, pending := p.idle.bytes, p.pendingLocked()
	return fmt.Errorf("%w (the pool holds %d bytes: %d are idle, %d freed in streams that are not known to have come there, the longest run is %d)",
		err, uint64(p.chunks.Load())*p.chunk, free, pending, p.largestLocked()) //nolint:gosec // not negative
}

// searchLocked looks for size bytes among the memory that is mapped where it is needed.
func (p *Pool) searchLocked(st *stream, size uint64, r *region) *extent {
	follow := p.allows(ReuseFollowEvents)
	p.settleLocked()
	if e := p.findLocked(st, size, r, follow); e != nil {
		return e
	}
	if p.allows(ReuseOpportunistic) {
		p.askLocked()
		p.settleLocked()
		if e := p.findLocked(st, size, r, follow); e != nil {
			return e
		}
	}
	p.mu.Unlock()
	p.gather()
	p.mu.Lock()
	p.settleLocked()
	p.joinFreeLocked(st)
	return p.findLocked(st, size, r, follow)
}

// site is addresses where memory is about to be mapped.
type site struct {
	before *extent // free memory in front of it that the block begins with; nil: none
	home   *home   // of before
	hole   *extent // taken out of the holes, of whole chunks
	chunks int
}

var errMustCreate = errors.New("idle chunks are not enough")

// growLocked maps memory for size bytes: chunks that are idle elsewhere, then, if create is
// set, new ones, else it returns errMustCreate. It completes or changes nothing. It releases
// p.mu meanwhile.
func (p *Pool) growLocked(st *stream, size uint64, r *region, create bool) (*extent, error) {
	s, ok := p.siteLocked(st, size, r)
	for i := 1; i < regionCount && !ok; i++ {
		s, ok = p.siteLocked(st, size, &p.regions[(r.index+i)%regionCount])
	}
	if !ok {
		return nil, fmt.Errorf("%w: %d bytes of addresses are taken or in pieces too short; see Options.Addresses", vmm.ErrOutOfMemory, p.res.Size())
	}
	if err := p.mapLocked(s, create); err != nil {
		return nil, err
	}
	e := s.hole
	if s.before != nil {
		e = s.before
		e.by = s.home.st
		p.joinLocked(e)
	}
	e.kind = kindBusy
	if e.size == size {
		return e, nil
	}
	f := p.cutFrontLocked(e, size)
	p.freeLocked(e, nil, 0)
	return f, nil
}

// siteLocked finds and takes the addresses where the fewest chunks have to be mapped: a hole,
// with the free memory in front of it.
func (p *Pool) siteLocked(st *stream, size uint64, r *region) (s site, ok bool) {
	for _, h := range r.holes {
		before := uint64(0)
		if x := h.prev; x != nil && x.kind == kindFree && (x.home == &st.free || x.home == &p.idle) {
			before = x.size
		}
		if before >= size {
			continue // the search has not seen it; another one will
		}
		k := int((size - before + p.chunk - 1) / p.chunk)                   //nolint:gosec // not above the slots
		if uint64(k)*p.chunk <= h.size && (s.hole == nil || k < s.chunks) { //nolint:gosec // not negative
			s = site{hole: h, chunks: k}
			if before > 0 {
				s.before = h.prev
			}
		}
	}
	if s.hole == nil {
		return s, false
	}
	if s.before != nil {
		s.home = s.before.home
		s.home.remove(s.before)
		s.before.kind = kindBusy
	}
	s.hole = p.takeHoleLocked(s.hole, uint64(s.chunks)*p.chunk) //nolint:gosec // not negative
	return s, true
}

// takeHoleLocked takes the first size bytes of a hole, which are then busy.
func (p *Pool) takeHoleLocked(h *extent, size uint64) *extent {
	p.forgetHoleLocked(h)
	if h.size > size {
		f := p.cutFrontLocked(h, size)
		f.kind = kindBusy
		p.addHoleLocked(h)
		return f
	}
	h.kind = kindBusy
	return h
}

// mapLocked maps memory at a site. If that fails everything is as it was. It releases p.mu
// meanwhile.
func (p *Pool) mapLocked(s site, mayCreate bool) error {
	have := p.takeSpareLocked(s.chunks)
	moved := p.takeIdleLocked(s.chunks - len(have))
	create := s.chunks - len(have)
	for _, e := range moved {
		create -= int(e.size / p.chunk) //nolint:gosec // not above the slots
	}
	err := errMustCreate
	if create == 0 || mayCreate {
		err = p.chargeLocked(create)
	}
	if err == nil {
		p.mu.Unlock()
		var created int
		have, created, err = p.obtain(have, moved, s.chunks)
		if err == nil {
			err = p.res.Map(s.hole.off, have...)
		}
		p.mu.Lock()
		p.chunks.Add(int64(created - create))        // less what was not created after all
		p.stats.Created += uint64(created) * p.chunk //nolint:gosec // not negative
	}
	for _, e := range moved {
		if p.slots[e.off/p.chunk].chunk == nil {
			p.stats.Remapped += e.size
			p.addHoleLocked(e)
		} else {
			e.stamp = 0
			p.addFreeLocked(e, &p.idle) // it is still mapped
		}
	}
	if err == nil {
		for i, c := range have {
			p.slots[s.hole.off/p.chunk+uint64(i)].chunk = c //nolint:gosec // not negative
		}
		return nil
	}
	p.spare = append(p.spare, have...)
	p.undoSiteLocked(s, err)
	return err
}

// undoSiteLocked gives a site back. Where the driver refuses to map, the next try would fail
// as this one did: such addresses are not used before TrimTo.
func (p *Pool) undoSiteLocked(s site, cause error) {
	if s.before != nil {
		s.home.add(s.before)
	}
	if errors.Is(cause, vmm.ErrOutOfMemory) || errors.Is(cause, vmm.ErrClosed) || cause == errMustCreate {
		p.addHoleLocked(s.hole)
		return
	}
	s.hole.kind = kindBad
	p.bad++
}

// chargeLocked counts chunks that are about to be created.
func (p *Pool) chargeLocked(create int) error {
	now := p.chunks.Load() + int64(create)
	if now > int64(p.most) {
		return fmt.Errorf("%w: the pool's maximum is %d bytes", vmm.ErrOutOfMemory, uint64(p.most)*p.chunk) //nolint:gosec // not negative
	}
	p.chunks.Store(now)
	p.chunksPeak = max(p.chunksPeak, now)
	return nil
}

// takeSpareLocked takes up to n chunks that are not mapped.
func (p *Pool) takeSpareLocked(n int) []*vmm.Chunk {
	n = min(n, len(p.spare))
	out := p.spare[len(p.spare)-n:]
	p.spare = p.spare[:len(p.spare)-n]
	return append([]*vmm.Chunk(nil), out...)
}

// takeIdleLocked takes up to n whole chunks of idle memory, as runs that are then busy. It
// takes the ends of the shortest runs that have any, so that long ones stay.
func (p *Pool) takeIdleLocked(n int) (out []*extent) {
	for i := range p.regions {
		b := &p.idle.bins[i]
		for bin := b.from(binOf(p.chunk / pageSize)); bin >= 0 && n > 0; {
			e := b.heads[bin]
			for e != nil && p.wholeChunks(e) == 0 {
				e = e.binNext
			}
			if e == nil {
				bin = b.from(bin + 1)
				continue
			}
			m := min(n, p.wholeChunks(e))
			out = append(out, p.takeChunksLocked(e, m))
			n -= m
			bin = b.from(bin) // which may be empty by now
		}
	}
	return out
}

// wholeChunks is how many chunks lie within an extent.
func (p *Pool) wholeChunks(e *extent) int {
	first, last := (e.off+p.chunk-1)/p.chunk, e.end()/p.chunk
	return int(max(first, last) - first) //nolint:gosec // not above the slots
}

// takeChunksLocked takes the last n whole chunks of an idle extent.
func (p *Pool) takeChunksLocked(e *extent, n int) *extent {
	p.idle.remove(e)
	end := e.end() / p.chunk * p.chunk
	off := end - uint64(n)*p.chunk //nolint:gosec // not negative
	if off > e.off {
		p.idle.add(p.cutFrontLocked(e, off-e.off))
	}
	if e.end() > end {
		run := p.cutFrontLocked(e, end-e.off)
		p.idle.add(e)
		e = run
	}
	e.kind = kindBusy
	return e
}

// obtain adds chunks to have until there are n: those of the runs, which it unmaps, then new
// ones, which it counts.
func (p *Pool) obtain(have []*vmm.Chunk, runs []*extent, n int) (all []*vmm.Chunk, created int, err error) {
	have, err = p.unmap(have, runs)
	for err == nil && len(have) < n {
		var c *vmm.Chunk
		if c, err = p.dev.CreateOrReuse(p.chunk, p.prop); err == nil {
			have = append(have, c)
			created++
		}
	}
	return have, created, err
}

// unmap unmaps idle runs, which are busy, and appends their chunks. After an error the runs
// that are still mapped keep theirs.
func (p *Pool) unmap(chunks []*vmm.Chunk, runs []*extent) ([]*vmm.Chunk, error) {
	for _, e := range runs {
		if err := p.res.UnmapNow(e.off, e.size); err != nil {
			return chunks, err
		}
		for i := e.off / p.chunk; i < e.end()/p.chunk; i++ {
			chunks = append(chunks, p.slots[i].chunk)
			p.slots[i].chunk = nil
		}
	}
	return chunks, nil
}

// waitLocked makes st wait for other streams, one after the other, until size bytes that were
// freed in them are free for st. If that is not enough it waits, too, until their work has
// ended, since only then chunks can move. It releases p.mu meanwhile.
func (p *Pool) waitLocked(st *stream, size uint64, r *region) *extent {
	for _, t := range p.all {
		// At first a stream whose memory is enough by itself.
		if t != st && t.free.bins[r.index].find(size, math.MaxUint64) != nil && p.followLocked(st, t) {
			if e := p.findLocked(st, size, r, true); e != nil {
				return e
			}
		}
	}
	for _, t := range p.all {
		if t != st && t.free.newest != nil && p.followLocked(st, t) {
			p.rehomeLocked(t, st)
		}
	}
	p.joinFreeLocked(st)
	if e := p.findLocked(st, size, r, true); e != nil {
		return e
	}
	var fences []vmm.Fence
	for _, t := range p.all {
		if t.free.newest == nil {
			continue
		}
		if f, err := t.s.Fence(); err == nil {
			fences = append(fences, f)
		}
	}
	if len(fences) == 0 {
		return nil
	}
	p.mu.Unlock()
	for _, f := range fences {
		_ = f.Sync() // one that fails leaves its memory as it is
		f.Free()
	}
	p.mu.Lock()
	p.settleLocked()
	if e := p.findLocked(st, size, r, true); e != nil {
		return e
	}
	e, err := p.growLocked(st, size, r, true)
	if err != nil {
		return nil
	}
	return e
}

// followLocked makes st wait for what was freed in t.
func (p *Pool) followLocked(st, t *stream) bool {
	if st.s.After(t.s) > t.free.newest.stamp {
		return true
	}
	f, err := t.s.Fence()
	if err != nil {
		return false
	}
	defer f.Free()
	if st.s.WaitFence(f) != nil {
		return false
	}
	p.stats.Waits++
	return true
}

// rehomeLocked makes what was freed in t, for which st waits, free memory of st.
func (p *Pool) rehomeLocked(t, st *stream) {
	before, stamp := st.s.After(t.s), st.s.Point()
	for e := t.free.oldest; e != nil && e.stamp < before; e = t.free.oldest {
		t.free.remove(e)
		e.stamp = stamp
		st.free.add(e)
	}
}
