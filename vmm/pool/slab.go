package pool

import (
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm"
)

// slab is a run of pages that is divided into blocks of one size. One stream, its home,
// allocates from it.
type slab struct {
	// Immutable.
	owner owner
	ext   *extent
	ptr   vmm.Ptr
	size  uint64 // of a block
	magic uint64 // see index
	class int
	seqs  []atomic.Uint64 // of each block, and bits above numberBits; 0: free

	// Of each block, guarded as that is by who has it; nil until one is sampled, by home.
	samples atomic.Pointer[[]*memsample.Sample]

	home atomic.Pointer[stream] // changes once that stream is closed

	// Guarded by home's mu.
	free       []uint16 // of the first begun blocks those that are free
	begun      int      // how many blocks were ever allocated: the first ones
	idle       int      // so many of free, the first ones, were idle before that
	stamp      uint64   // home's point when a block was freed in it last
	unused     uint64   // the stamp of blocks that were never allocated
	list       *slabList
	prev, next *slab

	_ [8]byte // so that no two slabs, of different streams, share a line of the cache
}

func newSlab(p *Pool, e *extent, class int, st *stream) *slab {
	size := p.classes.sizes[class]
	n := e.size / size
	sl := &slab{
		ext: e, class: class, size: size, magic: (1<<40 + size - 1) / size,
		ptr:  p.base + vmm.Ptr(e.off),
		seqs: make([]atomic.Uint64, n, (n+7)&^7), // whole lines of the cache, as above
		free: make([]uint16, 0, (n+31)&^31),
	}
	sl.owner = owner{pool: p, slab: sl}
	sl.home.Store(st)
	e.usedBy(st)
	sl.stamp, sl.unused = e.stamp, e.stamp
	return sl
}

// setSample sets the sample of a block that is about to be allocated. It needs home's mu.
func (sl *slab) setSample(i int, x *memsample.Sample) {
	all := sl.samples.Load()
	if all == nil {
		made := make([]*memsample.Sample, len(sl.seqs))
		all = &made
		sl.samples.Store(all)
	}
	(*all)[i] = x
}

// sample is where the sample of a block is; nil if no block of the slab has ever had one.
func (sl *slab) sample(i int) **memsample.Sample {
	if all := sl.samples.Load(); all != nil {
		return &(*all)[i]
	}
	return nil
}

// index is the number of the block at an address, without a division: a slab has less than
// 2^20 bytes.
func (sl *slab) index(p vmm.Ptr) int { return int(uint64(p-sl.ptr) * sl.magic >> 40) } //nolint:gosec // below len(seqs)

// inUse is how many blocks are allocated, or remote.
func (sl *slab) inUse() int { return sl.begun - len(sl.free) }

// bytes is how long the slab is.
func (sl *slab) bytes() uint64 { return sl.size * uint64(len(sl.seqs)) }

// full reports whether no block is free.
func (sl *slab) full() bool { return len(sl.free) == 0 && sl.begun == len(sl.seqs) }

// take takes a free block, of which there is one, and returns its number.
func (sl *slab) take() (i int) {
	if n := len(sl.free); n > 0 {
		i, sl.free = int(sl.free[n-1]), sl.free[:n-1]
		sl.idle = min(sl.idle, n-1)
		return i
	}
	sl.begun++
	return sl.begun - 1
}

// worked notes that a block is about to be freed in home, whose work may use it.
func (sl *slab) worked(home *stream) {
	if now := home.point(); now != sl.stamp {
		if sl.stamp < home.finished() {
			sl.idle = len(sl.free)
		}
		sl.stamp = now
	}
}

// lends reports whether there is a free block with a stamp below before.
func (sl *slab) lends(before uint64) bool {
	return sl.stamp < before && !sl.full() || sl.idle > 0 || sl.unused < before && sl.begun < len(sl.seqs)
}

// lend takes such a block, and returns its stamp too.
func (sl *slab) lend(before uint64) (i int, stamp uint64) {
	switch {
	case sl.stamp < before:
		return sl.take(), sl.stamp
	case sl.idle > 0:
		sl.idle--
		last := len(sl.free) - 1
		i = int(sl.free[sl.idle])
		sl.free[sl.idle] = sl.free[last]
		sl.free = sl.free[:last]
		return i, 0
	}
	sl.begun++
	return sl.begun - 1, sl.unused
}

// slabList is slabs with free blocks.
type slabList struct{ first *slab }

func (l *slabList) add(sl *slab) {
	sl.list, sl.prev, sl.next = l, nil, l.first
	if l.first != nil {
		l.first.prev = sl
	}
	l.first = sl
}

func (l *slabList) remove(sl *slab) {
	if sl.next != nil {
		sl.next.prev = sl.prev
	}
	if sl.prev != nil {
		sl.prev.next = sl.next
	} else {
		l.first = sl.next
	}
	sl.list, sl.prev, sl.next = nil, nil, nil
}

// ofClass is a stream's blocks of one size.
type ofClass struct {
	current *slab       // blocks come from it until it is full
	partly  [4]slabList // the others with free blocks, the fullest first, by quarters
	empty   slabList    // without blocks
	empties int         // their number
	remote  remoteQueue // of other streams' slabs
	used    bool        // a block was allocated
}

// keepEmpty is how many bytes of slabs without blocks a stream keeps for each size: their
// number goes up and down as blocks come and go.
const keepEmpty = 1 << 20

// quarter is which list of c.partly a slab with free blocks belongs to. The next slab to
// allocate from is the fullest, so that those with few blocks empty out.
func (c *ofClass) quarter(p *Pool, sl *slab) *slabList {
	if p.hooks.noPacking {
		return &c.partly[0]
	}
	return &c.partly[(len(sl.seqs)-sl.inUse())*4/(len(sl.seqs)+1)]
}

// next makes another slab with free blocks the current one; nil if there is none.
func (c *ofClass) next() *slab {
	c.current = nil
	for i := range c.partly {
		if sl := c.partly[i].first; sl != nil {
			c.partly[i].remove(sl)
			c.current = sl
			return sl
		}
	}
	if sl := c.empty.first; sl != nil {
		c.forget(sl)
		c.current = sl
	}
	return c.current
}

// giveIdle is give of a block whose work has ended.
func (c *ofClass) giveIdle(p *Pool, sl *slab, i int) (release *slab) { return c.give(p, sl, i, true) }

// give gives block i back to its slab. It needs the mu of the slab's home. If the slab has no
// block any more and enough such are kept, it returns the slab: it is in no list then, and the
// caller releases it.
func (c *ofClass) give(p *Pool, sl *slab, i int, isIdle bool) (release *slab) {
	sl.free = append(sl.free, uint16(i)) //nolint:gosec // below len(seqs)
	if last := len(sl.free) - 1; isIdle {
		sl.free[sl.idle], sl.free[last] = sl.free[last], sl.free[sl.idle]
		sl.idle++
	}
	if sl == c.current {
		return nil
	}
	if sl.inUse() == 0 {
		c.forget(sl)
		if uint64(c.empties)*sl.bytes() >= keepEmpty { //nolint:gosec // not negative
			return sl
		}
		c.putBack(p, sl)
		return nil
	}
	if l := c.quarter(p, sl); l != sl.list {
		c.forget(sl)
		l.add(sl)
	}
	return nil
}
