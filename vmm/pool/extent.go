package pool

import (
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/memsample"
)

// pageSize is the unit of long blocks, which are in no slab, and of slabs.
const pageSize = 16 << 10

// kind is what an extent is; the package documentation has the table.
type kind uint8

const (
	kindHole  kind = iota // addresses without memory
	kindFree              // memory that no block uses
	kindBlock             // one block
	kindSlab              // a slab
	kindBusy              // one call has taken it, to map or unmap memory there or to use it
	kindBad               // the driver refused to map memory there; see Pool.repair
)

// owner is what a Block is in: an extent, a slab, or, without any of these, a DriverPool. It
// never changes, so that a Block that was freed long ago can still be checked.
type owner struct {
	pool *Pool
	ext  *extent
	slab *slab
}

// extent is a run of addresses of one kind. Extents lie side by side and fill a region.
// Pool.mu guards it.
type extent struct {
	owner      owner
	seq        atomic.Uint64 // of the Block, and bits above numberBits; 0 if there is none
	kind       kind
	region     *region
	off, size  uint64
	prev, next *extent           // by address
	sample     *memsample.Sample // of the Block; guarded as that is by who has it

	// Of a block or a slab: the stream whose work, up to stamp, may still use the memory of
	// blocks that were there before; nil: no such work.
	by *stream

	// Of a free one.
	list             *freeList
	stamp            uint64 // Point of the list's stream when the memory was freed; 0 if idle
	bin              int
	binPrev, binNext *extent
	older, newer     *extent // in the list's order

	_ [40]byte // so that blocks of different streams share no line of the cache
}

// end is the offset behind the extent.
func (e *extent) end() uint64 { return e.off + e.size }

// usedBy notes that work which st comes after may still use the memory of the extent, which was
// taken for st. Without such work it does nothing.
func (e *extent) usedBy(st *stream) {
	if e.by != nil {
		e.by, e.stamp = st, st.point()
	}
}

// freeList is free memory that one stream may use: what was freed in it. Pool.idle is memory
// whose work is known to have ended: any stream may use it.
type freeList struct {
	st             *stream           // nil: idle
	bins           [regionCount]bins // of each region
	oldest, newest *extent           // all of them in the order of their stamps
	bytes          [regionCount]uint64
}

// total is how many bytes there are in all regions.
func (h *freeList) total() (bytes uint64) {
	for _, n := range h.bytes {
		bytes += n
	}
	return bytes
}

func (h *freeList) add(e *extent) {
	e.kind, e.list = kindFree, h
	h.bins[e.region.index].insert(e, binOf(e.size/pageSize))
	h.bytes[e.region.index] += e.size
	// Nearly always the newest; one that was cut from an older extent goes where that was.
	at := h.newest
	for at != nil && at.stamp > e.stamp {
		at = at.older
	}
	e.older = at
	if at != nil {
		e.newer, at.newer = at.newer, e
	} else {
		e.newer, h.oldest = h.oldest, e
	}
	if e.newer != nil {
		e.newer.older = e
	} else {
		h.newest = e
	}
}

func (h *freeList) remove(e *extent) {
	h.bins[e.region.index].remove(e)
	h.bytes[e.region.index] -= e.size
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		h.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		h.newest = e.older
	}
	e.older, e.newer, e.list = nil, nil, nil
}

// regionCount is how many regions there are: for slabs and short blocks, for blocks of up to
// two chunks, and for longer ones.
const regionCount = 3

// region is a part of the addresses for blocks of similar sizes, so that short ones do not
// keep the chunks of long ones.
type region struct {
	index  int
	first  *extent
	holes  bins
	mapped uint64 // bytes
}
