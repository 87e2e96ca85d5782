package pool

import (
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm"
)

// setOwnersLocked enters in the slots what lies at an extent: on each page of a slab the slab,
// else the block on its first page, and in each later slot that it reaches. nil takes it out
// again, but for the block on its first page: Find sees that it is none any more.
func (p *Pool) setOwnersLocked(e *extent, o *owner) {
	i, page := e.off>>p.chunkShift, e.off&(p.chunk-1)/pageSize
	if e.kind == kindSlab {
		for range e.size / pageSize {
			p.slots[i].pages(p)[page].Store(o)
			if page++; page == p.chunk/pageSize {
				i, page = i+1, 0
			}
		}
		return
	}
	if at := &p.slots[i].pages(p)[page]; o != nil && at.Load() != o {
		at.Store(o)
	}
	for i++; i<<p.chunkShift < e.end(); i++ {
		p.slots[i].cover = nil
		if o != nil {
			p.slots[i].cover = e
		}
	}
}

// pages is what lies on each page of the slot. It needs p.mu.
func (s *slot) pages(p *Pool) []atomic.Pointer[owner] {
	all := s.owners.Load()
	if all == nil {
		made := make([]atomic.Pointer[owner], p.chunk/pageSize)
		all = &made
		s.owners.Store(all)
	}
	return *all
}

// Find returns the block that contains an address, or false if none is allocated there. It makes no
// driver call. The block's Size is what it has, which may be more than was asked for. Find must not
// run beside a Free of that block.
func (p *Pool) Find(at vmm.Ptr) (Block, bool) {
	if p.live() != nil || at < p.base || uint64(at-p.base) >= uint64(len(p.slots))*p.chunk {
		return Block{}, false
	}
	off := uint64(at - p.base)
	s := &p.slots[off/p.chunk]
	page := int(off % p.chunk / pageSize) //nolint:gosec // far below 2^63
	pages := s.owners.Load()
	if pages != nil {
		if o := (*pages)[page].Load(); o != nil && o.slab != nil {
			return o.slab.block(at)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := s.cover
	for ; pages != nil && page >= 0; page-- { // the block may begin on an earlier page
		if o := (*pages)[page].Load(); o != nil && o.ext.has(off) {
			e = o.ext
			break
		}
	}
	if e == nil || !e.has(off) {
		return Block{}, false
	}
	return Block{ptr: p.base + vmm.Ptr(e.off), size: e.size, in: &e.owner, seq: e.seq.Load() & numberBits}, true
}

// has reports whether an extent is a block that is allocated and has a byte at off.
func (e *extent) has(off uint64) bool {
	return e != nil && e.kind == kindBlock && e.seq.Load() != 0 && e.off <= off && off < e.end()
}

// block is the block that an address of a slab lies in.
func (sl *slab) block(at vmm.Ptr) (Block, bool) {
	i := sl.index(at)
	if i >= len(sl.seqs) {
		return Block{}, false
	}
	seq := sl.seqs[i].Load() & numberBits
	if seq == 0 {
		return Block{}, false
	}
	return Block{ptr: sl.ptr + vmm.Ptr(uint64(i)*sl.size), size: sl.size, in: &sl.owner, seq: seq}, true //nolint:gosec // not negative
}
