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
	case n == 0 && p.closed.Load():
		return Block{}, errClosed
	case n == 0:
		return Block{in: &p.none}, nil
	case n <= p.classes.most:
		return p.allocInSlab(st, p.classes.of(n), n)
	case n > uint64(p.most)*p.chunk: //nolint:gosec // not negative
		return Block{}, fmt.Errorf("%w: the pool's maximum is %d bytes", vmm.ErrOutOfMemory, uint64(p.most)*p.chunk) //nolint:gosec // not negative
	}
	return p.allocPages(st, n)
}

// allocPages allocates a block that is in no slab.
func (p *Pool) allocPages(st *stream, n uint64) (Block, error) {
	size := (n + p.unit - 1) &^ (p.unit - 1)
	if b, err := p.allocKept(st, size, n); err != nil || b.in != nil {
		return b, err
	}
	r := p.regionOf(size)
	p.mu.Lock()
	defer p.mu.Unlock()
	e, err := p.takeExtentLocked(st, size, r, n)
	if err != nil {
		return Block{}, err
	}
	p.longSeq++
	e.kind = kindBlock
	e.usedBy(st)
	e.seq.Store(p.longSeq)
	p.setOwnersLocked(e, &e.owner)
	p.long.count(p, 1, size)
	return Block{ptr: p.base + vmm.Ptr(e.off), size: n, in: &e.owner, seq: p.longSeq}, nil
}

// takeExtentLocked takes size bytes for st, which has asked for a block of asked bytes. If
// asked is 0 it neither waits nor calls OnOOM: there is another way.
func (p *Pool) takeExtentLocked(st *stream, size uint64, r *region, asked uint64) (*extent, error) {
	if p.closed.Load() {
		return nil, errClosed
	}
	if e := p.findLocked(st, size, r, p.allows(ReuseFollowEvents)); e != nil {
		return e, nil
	}
	p.underWay++
	defer p.doneLocked()
	return p.findSlowlyLocked(st, size, r, asked)
}

// doneLocked ends a call that p.underWay counts.
func (p *Pool) doneLocked() {
	if p.underWay--; p.underWay == 0 {
		p.noneUnderWay.Broadcast()
	}
}

// findSlowlyLocked finds size bytes for st, in the order that Alloc documents. It releases
// p.mu meanwhile.
func (p *Pool) findSlowlyLocked(st *stream, size uint64, r *region, asked uint64) (*extent, error) {
	for {
		p.mu.Unlock()
		p.releaseKept(p.list()...)
		p.mu.Lock()
		if e := p.searchLocked(st, size, r); e != nil {
			return e, nil
		}
		// New memory comes last. Before it come idle chunks elsewhere, slabs without blocks that
		// the streams keep, and free memory where blocks of other sizes lie.
		e, err := p.growLocked(st, size, r, p.tightLocked(r))
		if errors.Is(err, errMustCreate) || errors.Is(err, vmm.ErrOutOfMemory) {
			p.mu.Unlock()
			p.releaseUnusedSlabs(p.allows(ReuseOpportunistic))
			p.mu.Lock()
			if e = p.searchLocked(st, size, r); e != nil {
				return e, nil
			}
			e, err = p.growLocked(st, size, r, false)
		}
		for i := 1; i < regionCount && errors.Is(err, errMustCreate); i++ {
			if e = p.findLocked(st, size, &p.regions[(r.index+i)%regionCount], p.allows(ReuseFollowEvents)); e != nil {
				return e, nil
			}
		}
		if errors.Is(err, errMustCreate) {
			e, err = p.growLocked(st, size, r, true)
		}
		if err == nil || asked == 0 || !errors.Is(err, vmm.ErrOutOfMemory) {
			return e, err
		}
		if e := p.findAnywhereLocked(st, size, p.allows(ReuseFollowEvents)); e != nil {
			return e, nil
		}
		if p.allows(ReuseInternalDependencies) {
			if e := p.waitLocked(st, size, r); e != nil {
				return e, nil
			}
		}
		if p.onOOM == nil {
			return nil, p.exhaustedLocked(err)
		}
		p.doneLocked() // the function may close the pool, which waits for calls under way
		p.mu.Unlock()
		retry := p.onOOM(st.s, asked)
		p.mu.Lock()
		p.underWay++
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
	free, pending := p.idle.total(), p.pendingLocked()
	return fmt.Errorf("%w (the pool holds %d bytes: %d are idle, %d freed in streams whose work is not known to have ended, the longest run is %d)",
		err, uint64(p.chunks.Load())*p.chunk, free, pending, p.largestLocked()) //nolint:gosec // not negative
}

// tightLocked says whether so little is free where short blocks lie, less than 1/16 of what is
// mapped there, that to search for it costs more than new memory.
func (p *Pool) tightLocked(r *region) bool {
	free := p.idle.bytes[r.index]
	for _, st := range p.all {
		free += st.free.bytes[r.index]
	}
	return r.index == 0 && free < r.mapped/16
}

// searchLocked looks for size bytes in r alone: as findLocked does, then after the driver was
// asked what has ended, then once neighbours are joined.
func (p *Pool) searchLocked(st *stream, size uint64, r *region) *extent {
	follow := p.allows(ReuseFollowEvents)
	p.updateIdleLocked()
	if e := p.findLocked(st, size, r, follow); e != nil {
		return e
	}
	if p.allows(ReuseOpportunistic) {
		p.queryStreamsLocked()
		p.updateIdleLocked()
		if e := p.findLocked(st, size, r, follow); e != nil {
			return e
		}
	}
	p.joinFreeLocked(st)
	return p.findLocked(st, size, r, follow)
}

// waitLocked makes st wait for other streams, one after the other, until size bytes that were
// freed in them are free for st. If that is not enough the caller waits until the streams' work
// has ended, since only then chunks can move. It returns nil if even so there are not size
// bytes. It releases p.mu meanwhile.
func (p *Pool) waitLocked(st *stream, size uint64, r *region) *extent {
	for _, t := range p.all {
		// First a stream that has a run of this length: then one wait is enough.
		if t != st && t.free.bins[r.index].find(size, math.MaxUint64, scanMost) != nil && p.followLocked(st, t) {
			if e := p.findLocked(st, size, r, true); e != nil {
				return e
			}
		}
	}
	for _, t := range p.all {
		if t != st && t.free.newest != nil && p.followLocked(st, t) {
			p.takeOverLocked(t, st)
		}
	}
	p.joinFreeLocked(st)
	if e := p.findAnywhereLocked(st, size, true); e != nil {
		return e
	}
	// No run is long enough. The chunks of all streams are needed, and they cannot move before
	// their work has ended.
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
	p.waiting.Add(1)
	for _, f := range fences {
		_ = f.Sync() // one that fails leaves its memory as it is
		f.Free()
	}
	p.waiting.Add(-1)
	p.mu.Lock()
	p.updateIdleLocked()
	if e := p.findLocked(st, size, r, true); e != nil {
		return e
	}
	e, err := p.growLocked(st, size, r, true)
	if err != nil {
		return nil
	}
	return e
}

// followLocked makes st wait for the work that may use what was freed in t; false if it cannot,
// as while one of them is being captured.
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

// takeOverLocked makes what was freed in t, for which st waits, free memory of st.
func (p *Pool) takeOverLocked(t, st *stream) {
	before, stamp := st.s.After(t.s), st.s.Point()
	for e := t.free.oldest; e != nil && e.stamp < before; e = t.free.oldest {
		t.free.remove(e)
		e.stamp = stamp
		st.free.add(e)
	}
}
