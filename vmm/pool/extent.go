package pool

import "sync/atomic"

// pageSize is the unit of blocks that are not in a slab, and of what slabs are made of.
const pageSize = 16 << 10

// kind is what an extent is.
type kind uint8

const (
	kindHole  kind = iota // addresses without memory
	kindFree              // memory that no block uses
	kindBlock             // one block
	kindSlab              // a slab
	kindBusy              // memory is being mapped or unmapped there
	kindBad               // the driver refused to map memory there; see Pool.repairLocked
)

// owner is what a Block is in: an extent, a slab, or what another Allocator has. It never
// changes, so that a Block that was freed long ago can still be checked.
type owner struct {
	pool *Pool
	ext  *extent
	slab *slab
}

// extent is a run of addresses of one kind. Extents lie side by side and fill a region.
// Pool.mu guards it.
type extent struct {
	owner      owner
	seq        atomic.Uint64 // of the Block; 0 if there is none
	kind       kind
	region     *region
	off, size  uint64
	prev, next *extent // by address

	// Of a block: the stream whose work, up to stamp, may still use the memory of blocks that
	// were there before; nil: none.
	by *stream

	// Of a free one.
	home             *home
	stamp            uint64 // the home stream's Point when the memory was freed
	bin              int
	binPrev, binNext *extent
	older, newer     *extent // in home's order
}

// end is the offset behind the extent.
func (e *extent) end() uint64 { return e.off + e.size }

// usedBy notes that the extent, which was taken for st, may hold memory that work before st's
// still uses: if so, st comes after it.
func (e *extent) usedBy(st *stream) {
	if e.by != nil {
		e.by, e.stamp = st, st.s.Point()
	}
}

// home is free memory that one stream may use: what was freed in it. The pool's idle home is
// memory whose work is known to have ended: any stream may use it.
type home struct {
	st             *stream           // nil: idle
	bins           [regionCount]bins // of each region
	oldest, newest *extent           // all of them in the order of their stamps
	bytes          [regionCount]uint64
}

// total is how many bytes there are in all regions.
func (h *home) total() (bytes uint64) {
	for _, n := range h.bytes {
		bytes += n
	}
	return bytes
}

func (h *home) add(e *extent) {
	e.kind, e.home = kindFree, h
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

func (h *home) remove(e *extent) {
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
	e.older, e.newer, e.home = nil, nil, nil
}

// regionCount is how many regions there are: for slabs and short blocks, for blocks of up to
// two chunks, and for longer ones.
const regionCount = 3

// region is a part of the addresses for blocks of similar sizes, so that short ones do not
// keep the chunks of long ones.
type region struct {
	index  int
	first  *extent
	holes  []*extent // by address
	mapped uint64    // bytes
}
