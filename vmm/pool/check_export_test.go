package pool

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

// Check walks over all that the pool knows, and says what does not fit together. No other call
// may run meanwhile.
func Check(p *Pool) error {
	p.releaseKept(p.list()...)
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &checker{p: p, owners: map[uint64]*owner{}, covers: map[uint64]*extent{}, runs: map[*freeList]int{}, slabs: map[*slab]bool{}}
	for _, f := range []func(){c.regions, c.table, c.lists, c.streams, c.sums} {
		if f(); c.err != nil {
			return c.err
		}
	}
	return nil
}

// checker is what one walk has seen. Pool.mu is held.
type checker struct {
	p      *Pool
	err    error              // the first one
	owners map[uint64]*owner  // what the slots should have, by page
	covers map[uint64]*extent // by slot
	runs   map[*freeList]int  // free extents
	slabs  map[*slab]bool     // whether a stream has it
	blocks int64
	used   uint64
	bad    int

	slabUsed, slabBytes uint64
}

func (c *checker) check(ok bool, format string, args ...any) {
	if !ok && c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (e *extent) text() string {
	return fmt.Sprintf("extent [%#x, %#x) of kind %d", e.off, e.end(), e.kind)
}

// regions: extents lie side by side and fill the addresses.
func (c *checker) regions() {
	var at uint64
	for i := range c.p.regions {
		r := &c.p.regions[i]
		var prev *extent
		holes := 0
		for e := r.first; e != nil && c.err == nil; prev, e = e, e.next {
			c.check(e.off == at, "%s begins at %#x", e.text(), at)
			c.check(e.prev == prev && e.region == r, "%s is linked to another", e.text())
			c.check(e.size > 0 && e.size%pageSize == 0, "%s has no whole pages", e.text())
			c.check(e.owner.ext == e && e.owner.pool == c.p, "%s has another owner", e.text())
			c.extent(e)
			if e.kind == kindHole {
				c.check(e.bin == binOf(e.size/pageSize) && e.list == nil, "%s is in bin %d", e.text(), e.bin)
				c.check(prev == nil || prev.kind != kindHole, "%s lies behind a hole", e.text())
				holes++
			}
			at = e.end()
		}
		for bin := range r.holes.heads {
			for e := r.holes.heads[bin]; e != nil; e = e.binNext {
				c.check(e.kind == kindHole && e.region == r && e.bin == bin, "%s is in the bins of holes", e.text())
				holes--
			}
		}
		c.check(holes == 0, "region %d: %d holes more than in the bins", i, holes)
	}
	c.check(at == uint64(len(c.p.slots))*c.p.chunk, "the extents end at %#x", at)
	c.check(c.bad == int(c.p.bad.Load()), "%d bad extents, %d are counted", c.bad, c.p.bad.Load())
}

// extent checks what its kind says about it.
func (c *checker) extent(e *extent) {
	c.check((e.kind == kindFree) == (e.list != nil), "%s is in list %p", e.text(), e.list)
	c.check((e.kind == kindBlock) == (e.seq.Load() != 0), "%s has number %d", e.text(), e.seq.Load())
	mapped := true
	switch e.kind {
	case kindHole, kindBad:
		mapped = false
		c.check(e.off%c.p.chunk == 0 && e.size%c.p.chunk == 0, "%s has no whole chunks", e.text())
		if e.kind == kindBad {
			c.bad++
		}
	case kindFree:
		c.runs[e.list]++
		c.check(e.bin == binOf(e.size/pageSize), "%s is in bin %d", e.text(), e.bin)
	case kindBlock:
		c.blocks++
		c.used += e.size
		c.owners[e.off/pageSize] = &e.owner
		for i := e.off/c.p.chunk + 1; i*c.p.chunk < e.end(); i++ {
			c.covers[i] = e
		}
	case kindSlab:
		c.slab(e)
	default:
		c.check(false, "%s while no call runs", e.text())
	}
	for i := e.off / c.p.chunk; i*c.p.chunk < e.end(); i++ {
		c.check((c.p.slots[i].chunk != nil) == mapped, "%s: chunk %d is mapped or not", e.text(), i)
	}
}

// slab checks the blocks of a slab, which it finds by what the slots say.
func (c *checker) slab(e *extent) {
	s := &c.p.slots[e.off/c.p.chunk]
	pages := s.owners.Load()
	if pages == nil || (*pages)[e.off%c.p.chunk/pageSize].Load() == nil {
		c.check(false, "%s: the slots do not know it", e.text())
		return
	}
	o := (*pages)[e.off%c.p.chunk/pageSize].Load()
	sl := o.slab
	if sl == nil || sl.ext != e || o != &sl.owner || sl.ptr != c.p.base+vmm.Ptr(e.off) {
		c.check(false, "%s is another's", e.text())
		return
	}
	for at := e.off; at < e.end(); at += pageSize {
		c.owners[at/pageSize] = o
	}
	c.slabs[sl] = false
	c.slabBytes += sl.bytes()
	c.check(0 <= sl.idle && sl.idle <= len(sl.free), "%s: %d of %d free blocks are idle", e.text(), sl.idle, len(sl.free))
	free := map[uint16]bool{}
	for _, i := range sl.free {
		c.check(!free[i] && int(i) < sl.begun && sl.seqs[i].Load() == 0, "%s: block %d is not free", e.text(), i)
		free[i] = true
	}
	for i := range sl.seqs {
		if sl.seqs[i].Load() != 0 {
			c.check(i < sl.begun, "%s: block %d was never begun", e.text(), i)
			c.blocks++
			c.used += sl.size
			c.slabUsed += sl.size
		}
	}
}

// table: the slots say what lies where.
func (c *checker) table() {
	for i := range c.p.slots {
		s := &c.p.slots[i]
		c.check(s.cover == c.covers[uint64(i)], "slot %d is covered by %p", i, s.cover)
		pages := s.owners.Load()
		for k := range c.p.chunk / pageSize {
			want := c.owners[uint64(i)*c.p.chunk/pageSize+k]
			if pages == nil {
				c.check(want == nil, "slot %d has no pages", i)
				break
			}
			got := (*pages)[k].Load() // what is left of a block that was freed is found out by Find
			c.check(got == want || want == nil && got.slab == nil, "page %d of slot %d has another owner", k, i)
		}
	}
}

// lists: the free extents are in their runs' lists, once each, and no others are.
func (c *checker) lists() {
	all := map[*freeList]bool{&c.p.idle: true}
	for _, st := range c.p.all {
		all[&st.free] = true
		c.check(st.free.st == st, "the free list of a stream is another's")
	}
	for h := range c.runs {
		c.check(all[h], "free memory in the list of a stream that is forgotten")
	}
	for h := range all {
		c.list(h)
	}
}

func (c *checker) list(h *freeList) {
	var bytes uint64
	n := 0
	var older *extent
	for e := h.oldest; e != nil && c.err == nil; older, e = e, e.newer {
		c.check(e.kind == kindFree && e.list == h, "%s is in the order of another list", e.text())
		c.check(e.older == older && (older == nil || older.stamp <= e.stamp), "%s is out of order", e.text())
		c.check(h.st != nil || e.stamp == 0, "%s is idle at %d", e.text(), e.stamp)
		bytes += e.size
		n++
	}
	c.check(h.newest == older, "the newest is another")
	c.check(h.total() == bytes && n == c.runs[h], "a list of %d bytes in %d extents has %d in %d", h.bytes, c.runs[h], bytes, n)
	for r := range h.bins {
		b := &h.bins[r]
		for i := range b.heads {
			c.check((b.heads[i] != nil) == (b.used[i>>6]>>(i&63)&1 == 1), "bin %d is marked wrongly", i)
			var prev *extent
			for e := b.heads[i]; e != nil && c.err == nil; prev, e = e, e.binNext {
				c.check(e.bin == i && e.binPrev == prev && e.list == h && e.region.index == r, "%s is in bin %d of region %d", e.text(), i, r)
				n--
			}
		}
	}
	c.check(n == 0, "%d extents more in the list than in the bins", n)
}

// streams: each slab is in one place of its home, and blocks that were freed elsewhere are
// neither allocated nor free.
func (c *checker) streams() {
	waiting := map[*slab]int{}
	all := int64(0)
	slabs := map[*stream]int{}
	for _, st := range c.p.all {
		st.mu.Lock()
		defer st.mu.Unlock() //nolint:revive // all of them are held to the end
		c.check(!st.gone || c.p.closed.Load(), "a stream that is gone is in the list")
		for class := range st.classes {
			for _, f := range st.classes[class].remote.list() {
				waiting[f.sl]++
				all++
				c.check(f.sl.class == class && f.sl.seqs[f.i].Load() == 0, "a block that waits is allocated")
				c.check(f.stamp <= st.point() || !st.open(), "a block that waits for later work")
			}
			c.slabsOf(st, class)
		}
	}
	c.check(all == c.p.remotes.Load(), "%d blocks wait, %d are counted", all, c.p.remotes.Load())
	for sl, has := range c.slabs {
		st := sl.home.Load()
		slabs[st]++
		c.check(has || sl.full(), "a slab with free blocks in no list")
		live := 0
		for i := range sl.seqs {
			if sl.seqs[i].Load() != 0 {
				live++
			}
		}
		c.check(live+waiting[sl] == sl.inUse(), "a slab with %d blocks, of which %d wait, counts %d", live, waiting[sl], sl.inUse())
		delete(waiting, sl)
	}
	c.check(len(waiting) == 0, "blocks wait for slabs that are gone")
	for _, st := range c.p.all {
		c.check(st.slabs == slabs[st], "a stream with %d slabs counts %d", slabs[st], st.slabs)
		delete(slabs, st)
	}
	c.check(len(slabs) == 0, "slabs of streams that are forgotten")
}

// slabsOf enters the slabs that a stream has of a class.
func (c *checker) slabsOf(st *stream, class int) {
	o := &st.classes[class]
	enter := func(sl *slab, l *slabList) {
		seen, known := c.slabs[sl]
		c.check(known && !seen, "a slab in two places, or gone")
		c.check(sl.home.Load() == st && sl.class == class && sl.list == l, "a slab in the list of another")
		c.slabs[sl] = true
	}
	if o.current != nil {
		enter(o.current, nil)
	}
	empties := 0
	for sl := o.empty.first; sl != nil && c.err == nil; sl = sl.next {
		enter(sl, &o.empty)
		c.check(sl.inUse() == 0, "an empty slab has blocks")
		empties++
	}
	c.check(empties == o.empties, "%d empty slabs are counted as %d", empties, o.empties)
	for i := range o.partly {
		for sl := o.partly[i].first; sl != nil && c.err == nil; sl = sl.next {
			enter(sl, &o.partly[i])
			c.check(o.quarter(c.p, sl) == &o.partly[i] && !sl.full(), "a slab in the wrong quarter")
		}
	}
}

// sums: the counts are what was counted here.
func (c *checker) sums() {
	var s counts
	for _, x := range append([]*counts{&c.p.past, &c.p.long}, countsOf(c.p.all)...) {
		s.blocks += x.blocks
		s.used += x.used
		s.charged += x.charged
		s.pages += x.pages
		s.allocs += x.allocs
		s.frees += x.frees
	}
	c.check(s.blocks == c.blocks, "%d blocks, %d are counted", c.blocks, s.blocks)
	c.check(s.allocs-s.frees == uint64(c.blocks), "%d blocks, %d allocated and %d freed", c.blocks, s.allocs, s.frees)
	used := c.p.used.now.Load() + s.used - s.charged
	c.check(used >= 0 && uint64(used) == c.used, "%d bytes used, %d are counted", c.used, used)
	chunks := len(c.p.spare)
	for i := range c.p.slots {
		if c.p.slots[i].chunk != nil {
			chunks++
		}
	}
	c.check(int64(chunks) == c.p.chunks.Load() && chunks <= c.p.most, "%d chunks of %d, %d are counted", chunks, c.p.most, c.p.chunks.Load())
	c.check(c.p.chunks.Load() <= c.p.chunksPeak, "the peak is %d", c.p.chunksPeak)
	c.check(s.pages+c.slabUsed == c.used && c.p.slabBytes == c.slabBytes, "%d bytes of pages are counted, and %d of slabs", s.pages, c.p.slabBytes)
	c.check(c.p.underWay == 0 && c.p.moving == 0 && c.p.several.Load() == (len(c.p.all) > 1), "%d calls, %d streams", c.p.underWay, len(c.p.all))
	known := map[any]bool{}
	c.p.streams.Range(func(_, st any) bool { known[st] = true; return true })
	for _, st := range c.p.all {
		c.check(known[st], "a stream that is not found")
	}
	c.check(len(known) == len(c.p.all), "%d streams are found", len(known))
}

func countsOf(all []*stream) (out []*counts) {
	for _, st := range all {
		out = append(out, &st.counts)
	}
	return out
}

// Exhausted is Pool.exhausted.
func Exhausted(p *Pool, err error, reasons ...string) error { return p.exhausted(err, reasons) }
