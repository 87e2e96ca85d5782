package pool

import (
	"errors"

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
	case !c.remote.empty():
		b := c.remote.newest(st.p)
		sl, i = b.sl, b.i
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
	if x := st.p.sample(&st.due, sl.size); x != nil {
		sl.setSample(i, x)
	}
	seq := st.nextSeq()
	sl.seqs[i].Store(seq)
	st.count(1, sl.size)
	return Block{ptr: sl.ptr + vmm.Ptr(uint64(i)*sl.size), size: n, in: &sl.owner, seq: seq} //nolint:gosec // not negative
}

// allocInSlab allocates a block of a class, from a new slab if there must be one.
func (p *Pool) allocInSlab(st *stream, class int, n uint64) (Block, error) {
	// After what the stream has come blocks of slabs that were freed in other streams, and slabs
	// of closed streams.
	for _, more := range []func(*stream, int) bool{nil, p.remotesFor, p.adopt, p.firstOf} {
		if more == nil || more(st, class) {
			st.mu.Lock()
			b, err := st.takeAtHand(class, n)
			st.mu.Unlock()
			if err != nil || b.in != nil {
				return b, err
			}
		}
	}
	p.releaseKept(st)
	size := (slabSize(p.classes.sizes[class]) + p.unit - 1) &^ (p.unit - 1)
	p.mu.Lock()
	e, _, err := p.obtain(st, want{size: size, r: p.regionOf(size), class: class})
	if err != nil {
		p.mu.Unlock()
		if errors.Is(err, vmm.ErrOutOfMemory) {
			return p.allocPages(st, n, class) // there may be room for one block
		}
		return Block{}, err
	}
	e.kind = kindSlab
	p.moving++ // until its free blocks are in a list
	p.mu.Unlock()
	sl := newSlab(p, e, class, st)

	st.mu.Lock()
	defer st.mu.Unlock()
	p.mu.Lock()
	p.setOwnersLocked(e, &sl.owner)
	p.slabBytes += sl.bytes()
	if st.gone {
		p.releaseSlabLocked(sl, st) // its memory may have been freed in st just now
	}
	p.movedLocked()
	p.mu.Unlock()
	if st.gone {
		return Block{}, st.goneErr()
	}
	st.slabs++
	c := &st.classes[class]
	i := sl.take()
	if c.current == nil || c.current.full() {
		c.current = sl
	} else if !sl.full() {
		c.quarter(p, sl).add(sl) // another goroutine has made one meanwhile
	}
	p.lastSlabs[class].Store(sl)
	return st.blockIn(sl, i, n), nil
}

// takeAtHand allocates from what st has; no block if it has none. It needs st.mu.
func (st *stream) takeAtHand(class int, n uint64) (Block, error) {
	if st.gone {
		return Block{}, st.goneErr()
	}
	c := &st.classes[class]
	if !c.remote.empty() {
		b := c.remote.newest(st.p)
		return st.blockIn(b.sl, b.i, n), nil
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
	if err := endBlock(&sl.seqs[i], b.seq, sl.sample(i)); err != nil {
		st.mu.Unlock()
		return err
	}
	st.giveUsedLocked(sl, i)
	st.mu.Unlock()
	return nil
}

// giveUsedLocked is giveLocked of a block that work of st may use, and giveUnusedLocked of one that
// none uses.
func (st *stream) giveUsedLocked(sl *slab, i int)   { st.giveLocked(sl, i, true) }
func (st *stream) giveUnusedLocked(sl *slab, i int) { st.giveLocked(sl, i, false) }

// giveLocked takes a block back that was allocated. inUse reports whether work of st may use it; work
// before it was allocated may in any case. It needs st.mu.
func (st *stream) giveLocked(sl *slab, i int, inUse bool) {
	st.count(-1, sl.size)
	c := &st.classes[sl.class]
	if sl.home.Load() != st {
		c.remote.push(st.p, remoteBlock{sl, i, st.point()})
		return
	}
	if inUse {
		sl.worked(st)
	}
	if release := c.give(st.p, sl, i, false); release != nil {
		st.slabs--
		st.p.mu.Lock()
		st.p.releaseSlabLocked(release, st)
		st.p.mu.Unlock()
	}
}

// freeInSlabNow is FreeNow of a block in a slab. Work before the block may still use the memory.
// So the block goes back to the stream that allocated it, in whose order that work is.
func (p *Pool) freeInSlabNow(sl *slab, b Block) error {
	st := p.lockAllocator(sl, b)
	defer st.mu.Unlock()
	i := sl.index(b.ptr)
	if err := endBlock(&sl.seqs[i], b.seq, sl.sample(i)); err != nil {
		return err
	}
	st.giveUnusedLocked(sl, i)
	return nil
}

// lockAllocator locks the mu of the stream that has allocated a block, or, if that is closed and its
// work has ended, of the slab's home. It returns the stream.
func (p *Pool) lockAllocator(sl *slab, b Block) *stream {
	if in, ok := p.leases.Load(b.seq / leaseSize); ok {
		st := in.(*stream) //nolint:forcetypeassert // nothing else is stored
		st.mu.Lock()
		if !st.gone && st.open() {
			return st
		}
		st.mu.Unlock()
	}
	for {
		home := sl.home.Load()
		home.mu.Lock()
		if sl.home.Load() == home {
			return home
		}
		home.mu.Unlock()
	}
}

// releaseSlabLocked gives the pages of a slab without blocks back to the heap. Its home was st, in
// whose lists it is not any more.
func (p *Pool) releaseSlabLocked(sl *slab, st *stream) {
	p.setOwnersLocked(sl.ext, nil)
	p.slabBytes -= sl.bytes()
	p.freeLocked(sl.ext, st, sl.stamp)
}

// adopt makes a slab of a closed stream one of st; false if there is none.
func (p *Pool) adopt(st *stream, class int) bool {
	for _, t := range p.list() {
		if t != st && !t.open() && p.adoptFrom(t, st, class) {
			return true
		}
	}
	return false
}

func (p *Pool) adoptFrom(t, st *stream, class int) bool {
	unlock := lockBoth(t, st) // st may be closed by now, too
	defer unlock()
	if st.gone {
		return false
	}
	sl := t.classes[class].takeOut(p.reachEnded(st, t))
	if sl == nil {
		return false
	}
	sl.home.Store(st)
	sl.stamp, sl.unused = 0, 0 // the work of a closed stream has ended
	t.slabs--
	st.slabs++
	st.classes[class].putBack(p, sl)
	return true
}

// gather makes free memory of what lies ready for streams: see gatherLocked. ask reports whether to
// ask the driver first how far they have come.
func (p *Pool) gather(ask bool) {
	if ask && p.remotes.Load() > 0 {
		p.ask((*stream).newestRemote)
	}
	if p.remotes.Load() == 0 { // each stream by itself, so that the others go on
		for _, t := range p.list() {
			t.mu.Lock()
			p.mu.Lock()
			p.freeKeptLocked(t)
			p.releaseEmptyLocked(t)
			p.mu.Unlock()
			t.mu.Unlock()
		}
		return
	}
	streams := p.lockAll()
	p.gatherLocked(streams)
	unlockAll(streams)
	p.mu.Unlock()
}

// gatherLocked makes free memory of what streams keep: the blocks that were freed last, remote
// blocks whose work has ended, and slabs without blocks. The mu of all streams is held.
func (p *Pool) gatherLocked(streams []*stream) {
	for _, t := range streams {
		p.freeKeptLocked(t)
		done := p.reachEnded(nil, t)
		for class := range t.classes {
			for b, ok := t.classes[class].remote.oldest(p, done); ok; b, ok = t.classes[class].remote.oldest(p, done) {
				home := b.sl.home.Load()
				if release := home.classes[class].giveIdle(p, b.sl, b.i); release != nil {
					home.slabs--
					p.releaseSlabLocked(release, home)
				}
			}
		}
	}
	for _, t := range streams {
		p.releaseEmptyLocked(t)
	}
	p.updateIdleLocked()
}

// releaseEmptyLocked gives back the slabs of st that have no blocks. It needs st.mu, too.
func (p *Pool) releaseEmptyLocked(st *stream) {
	n := 0
	for i := range st.classes {
		if st.slabs == n {
			break // there are no others
		}
		c := &st.classes[i]
		if sl := c.current; sl != nil && sl.inUse() == 0 {
			c.current = nil
			p.releaseSlabLocked(sl, st)
			n++
		}
		for sl := c.empty.first; sl != nil; sl = c.empty.first {
			c.forget(sl)
			p.releaseSlabLocked(sl, st)
			n++
		}
	}
	st.slabs -= n
}

// ask asks the driver how far the streams have come in which memory was freed, the newest of it as
// newest says.
func (p *Pool) ask(newest func(*stream) (stamp uint64, some bool)) {
	for _, t := range p.list() {
		t.mu.Lock()
		stamp, some := newest(t)
		t.mu.Unlock()
		if some {
			p.mu.Lock()
			p.queryStreamLocked(t, stamp)
			p.mu.Unlock()
		}
	}
}

// newestRemote is the highest stamp of the stream's remote blocks; false if there are none. It
// needs st.mu.
func (st *stream) newestRemote() (stamp uint64, some bool) {
	for i := range st.classes {
		if all := st.classes[i].remote.list(); len(all) > 0 {
			stamp, some = max(stamp, all[len(all)-1].stamp), true
		}
	}
	return stamp, some
}

// newestSmall is the highest stamp of the stream's remote blocks and of its slabs with free blocks;
// false if there are none. It needs st.mu.
func (st *stream) newestSmall() (stamp uint64, some bool) {
	stamp, some = st.newestRemote()
	for i := range st.classes {
		c := &st.classes[i]
		for _, sl := range []*slab{c.current, c.partly[0].first, c.partly[1].first, c.partly[2].first, c.partly[3].first, c.empty.first} {
			for ; sl != nil; sl = sl.next {
				if !sl.full() {
					stamp, some = max(stamp, sl.stamp), true
				}
			}
		}
	}
	return stamp, some
}
