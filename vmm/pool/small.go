package pool

import (
	"errors"
	"math"

	"github.com/cuvmm/cuvmm/vmm"
)

// allocSmall allocates from the slab at hand; false if there is none.
func (st *stream) allocSmall(class int, n uint64) (Block, bool) {
	st.mu.Lock()
	c := &st.classes[class]
	var sl *slab
	var i int
	switch sl = c.current; {
	case st.gone:
		st.mu.Unlock()
		return Block{}, false
	case len(c.remote) > 0:
		sl, i = c.takeRemote(st.p)
	case sl != nil && !sl.full():
		i = sl.take()
	default:
		st.mu.Unlock()
		return Block{}, false
	}
	b := st.blockIn(sl, i, n)
	st.mu.Unlock()
	return b, true
}

// blockIn makes block i of a slab a block that is allocated. It needs st.mu.
func (st *stream) blockIn(sl *slab, i int, n uint64) Block {
	st.seq++
	sl.seqs[i].Store(st.seq)
	st.count(1, sl.size)
	return Block{ptr: sl.ptr + vmm.Ptr(uint64(i)*sl.size), size: n, in: &sl.owner, seq: st.seq} //nolint:gosec // not negative
}

// allocInSlab allocates a block of a class, from a new slab if there must be one.
func (p *Pool) allocInSlab(st *stream, class int, n uint64) (Block, error) {
	if b, err := st.allocAtHand(class, n); err != nil || b.in != nil {
		return b, err
	}
	// Blocks of st's slabs that were freed in other streams, and slabs of closed streams.
	if p.returnRemoteTo(st, class) || p.adopt(st, class) {
		if b, err := st.allocAtHand(class, n); err != nil || b.in != nil {
			return b, err
		}
	}
	p.releaseKept(st)
	size := (slabSize(p.classes.sizes[class]) + p.unit - 1) &^ (p.unit - 1)
	r := p.regionOf(size)
	p.mu.Lock()
	e, err := p.takeExtentLocked(st, size, r, 0)
	if err != nil {
		p.mu.Unlock()
		if errors.Is(err, vmm.ErrOutOfMemory) {
			return p.allocPages(st, n) // there may be room for one block
		}
		return Block{}, err
	}
	e.kind = kindSlab
	sl := newSlab(p, e, class, st)
	p.setOwnersLocked(e, &sl.owner)
	p.mu.Unlock()

	st.mu.Lock()
	if st.gone {
		st.mu.Unlock()
		p.releaseSlab(sl, st) // its memory may have been freed in st just now
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
	if len(c.remote) > 0 {
		sl, i := c.takeRemote(st.p)
		return st.blockIn(sl, i, n), nil
	}
	if sl := c.current; sl == nil || sl.full() {
		if c.next() == nil {
			return Block{}, nil
		}
	}
	return st.blockIn(c.current, c.current.take(), n), nil
}

// freeInSlab frees a block of a slab in st: into the slab, or, if that is another stream's, into
// the remote blocks of st.
func (p *Pool) freeInSlab(st *stream, sl *slab, b Block) error {
	i := sl.index(b.ptr)
	st.mu.Lock()
	if st.gone {
		st.mu.Unlock()
		return st.goneErr()
	}
	if !sl.seqs[i].CompareAndSwap(b.seq, 0) {
		st.mu.Unlock()
		return notAllocated(&sl.seqs[i], b.seq)
	}
	st.count(-1, sl.size)
	c := &st.classes[sl.class]
	if sl.home.Load() != st {
		c.addRemote(p, remoteBlock{sl, i, st.s.Point()})
		st.mu.Unlock()
		return nil
	}
	sl.stamp = st.s.Point()
	release := c.give(p, sl, i)
	if release != nil {
		st.slabs--
	}
	st.mu.Unlock()
	if release != nil {
		p.releaseSlab(release, st)
	}
	return nil
}

// freeInSlabNow is FreeNow of a block in a slab. Work before the block may still use the memory.
// So the block goes back to the stream that allocated it, in whose order that work is.
func (p *Pool) freeInSlabNow(sl *slab, b Block) error {
	i := sl.index(b.ptr)
	if !sl.seqs[i].CompareAndSwap(b.seq, 0) {
		return notAllocated(&sl.seqs[i], b.seq)
	}
	home := sl.lockHome()
	home.count(-1, sl.size)
	if home.number == b.seq>>streamBits {
		p.giveLocked(home, sl, i)
		return nil
	}
	home.mu.Unlock()
	// Another stream had it from its remote blocks, or the slab was adopted.
	for _, st := range p.list() {
		st.mu.Lock()
		if st.number == b.seq>>streamBits && st.open() {
			st.classes[sl.class].addRemote(p, remoteBlock{sl, i, st.s.Point()})
			st.mu.Unlock()
			return nil
		}
		st.mu.Unlock()
	}
	p.giveLocked(sl.lockHome(), sl, i)
	return nil
}

// lockHome locks the mu of the slab's home, and returns the home.
func (sl *slab) lockHome() *stream {
	for {
		home := sl.home.Load()
		home.mu.Lock()
		if sl.home.Load() == home {
			return home
		}
		home.mu.Unlock()
	}
}

// giveLocked gives a block, which home may use, back to its slab. It unlocks home.mu.
func (p *Pool) giveLocked(home *stream, sl *slab, i int) {
	release := home.classes[sl.class].give(p, sl, i)
	if release != nil {
		home.slabs--
	}
	home.mu.Unlock()
	if release != nil {
		p.releaseSlab(release, home)
	}
}

// releaseSlab gives the pages of a slab without blocks back to the heap. Its home was st, in
// whose lists it is not any more; if st is nil the pages are idle.
func (p *Pool) releaseSlab(sl *slab, st *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setOwnersLocked(sl.ext, nil)
	p.freeLocked(sl.ext, st, sl.stamp)
}

// returnRemoteTo gives the remote blocks of all other streams back to their slabs, if their work
// has ended, or st, whose slab it is, waits for it. It says whether st has got any.
func (p *Pool) returnRemoteTo(st *stream, class int) (some bool) {
	if p.remotes.Load() == 0 {
		return false
	}
	for _, t := range p.list() {
		if t == st {
			continue
		}
		newest, waiting := t.newestRemoteOf(class)
		if !waiting {
			continue
		}
		if p.returnRemote(t, class, st) {
			some = true
			continue
		}
		if p.allows(ReuseOpportunistic) {
			p.mu.Lock()
			p.queryStreamLocked(t, newest)
			p.mu.Unlock()
			some = p.returnRemote(t, class, st) || some
		}
	}
	return some
}

// returnRemote gives the remote blocks of t, of one class, back to their slabs, if their work
// has ended, or st, whose slab it is, waits for it. It says whether st has got any. st is nil
// for those whose work has ended alone.
func (p *Pool) returnRemote(t *stream, class int, st *stream) (some bool) {
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
	var out []remoteBlock
	kept := c.remote[:0]
	for _, f := range c.remote {
		if f.stamp < done || f.stamp < before && f.sl.home.Load() == st {
			out = append(out, f)
		} else {
			kept = append(kept, f)
		}
	}
	c.remote = kept
	t.mu.Unlock()
	p.remotes.Add(int64(-len(out)))
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
	// Of two streams' locks the older one's comes first: st may be closed by now, too.
	first, second := st, t
	if t.number < st.number {
		first, second = t, st
	}
	first.mu.Lock()
	defer first.mu.Unlock()
	second.mu.Lock()
	defer second.mu.Unlock()
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
		if st.slabs == len(out) {
			break // there are no others
		}
		c := &st.classes[i]
		if sl := c.current; sl != nil && sl.inUse() == 0 {
			out, c.current = append(out, sl), nil
		}
		for sl := c.empty.first; sl != nil; sl = c.empty.first {
			c.empty.remove(sl)
			out = append(out, sl)
		}
		c.empties = 0
	}
	st.slabs -= len(out)
	st.mu.Unlock()
	for _, sl := range out {
		p.releaseSlab(sl, st)
	}
}

// newestRemoteOf is the highest stamp of the remote blocks of a class; false if there are none.
func (st *stream) newestRemoteOf(class int) (stamp uint64, some bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	all := st.classes[class].remote
	if len(all) == 0 {
		return 0, false
	}
	return all[len(all)-1].stamp, true
}

// newestRemote is the highest stamp of the stream's remote blocks; false if there are none.
func (st *stream) newestRemote() (stamp uint64, some bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for i := range st.classes {
		if all := st.classes[i].remote; len(all) > 0 {
			stamp, some = max(stamp, all[len(all)-1].stamp), true
		}
	}
	return stamp, some
}

// releaseUnusedSlabs gives remote blocks back to their slabs, and slabs without blocks back to
// the heap; ask says whether to ask the driver how far the streams have come.
func (p *Pool) releaseUnusedSlabs(ask bool) {
	if p.remotes.Load() > 0 {
		for _, t := range p.list() {
			p.returnAllRemote(t, ask)
		}
	}
	p.releaseKept(p.list()...)
	for _, t := range p.list() {
		p.releaseEmpty(t)
	}
}

// returnAllRemote gives the remote blocks of t, of all classes, back to their slabs, if their
// work has ended.
func (p *Pool) returnAllRemote(t *stream, ask bool) {
	newest, some := t.newestRemote()
	if some && ask {
		p.mu.Lock()
		p.queryStreamLocked(t, newest)
		p.mu.Unlock()
	}
	for class := range t.classes {
		p.returnRemote(t, class, nil)
	}
}
