package pool

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm"
)

// Pool allocates stream-ordered memory of one device. It reserves addresses, and maps memory where
// blocks need it. A chunk that no block uses is unmapped, and mapped where the next block needs it.
// So the pool grows without a copy. Safe for concurrent use. The caller must Close it.
type Pool struct {
	// Immutable.
	dev        *vmm.Device
	log        *history.Log // dev's
	name       string
	res        *vmm.Reservation
	base       vmm.Ptr
	classes    *classes
	unit       uint64 // bytes; long blocks, which are in no slab, are multiples of it
	chunk      uint64 // bytes of a chunk, 1 << chunkShift
	chunkShift int
	most       int // chunks that it may hold
	prop       vmm.Prop
	onOOM      func(*vmm.Stream, uint64) bool
	hooks      hooks
	stops      []func() // they take back OnPressure and OnSync
	none       owner    // what blocks of 0 bytes are in

	closed    atomic.Bool
	closeMu   sync.Mutex // Close alone takes it
	streams   sync.Map   // *vmm.Stream to *stream
	first     atomic.Pointer[stream]
	reuse     atomic.Uint32
	threshold atomic.Uint64
	listed    atomic.Pointer[[]*stream] // all, for reading without mu
	waiting   atomic.Int32              // calls of Alloc that found no memory at first
	several   atomic.Bool               // there is more than one stream
	chunks    atomic.Int64              // chunks that it holds, mapped or not
	bad       atomic.Int32              // extents of kindBad
	lastSlabs []atomic.Pointer[slab]    // of each class the one that was made last
	slots     []slot                    // the addresses by chunks

	_       [64]byte // what changes often is apart from what calls only read
	used    gauge
	holds   holds
	remotes atomic.Int64  // how many remote blocks the streams have
	leased  atomic.Uint64 // the last of leases
	leases  sync.Map      // *stream by the numbers of its blocks; see leaseSize
	_       [64]byte

	mu           sync.Mutex // not held when memory is created, mapped, unmapped or released
	regions      [regionCount]region
	idle         freeList
	all          []*stream
	streamIDs    uint64
	unused       *extent
	spare        []*vmm.Chunk // chunks that are not mapped: a call that failed has left them
	underWay     int          // calls that work on memory without mu; Close waits for them
	noneUnderWay sync.Cond    // on mu: underWay is 0
	moving       int          // calls that hold memory which no other call sees: they map it or give it back
	moved        sync.Cond    // on mu: moving has become less
	chunksPeak   int64
	longSeq      uint64              // Block.seq of the last long block
	due          memsample.Countdown // of long blocks
	long         counts              // of long blocks
	past         counts              // of streams that are forgotten
	slabBytes    uint64              // of all slabs
	stats        Stats               // Created, Remapped, Released and Waits alone
}

// slot is the addresses of one chunk.
type slot struct {
	chunk  *vmm.Chunk                              // nil: none is mapped; guarded by Pool.mu
	cover  *extent                                 // the long block that began in an earlier slot and goes on here; guarded by Pool.mu
	owners atomic.Pointer[[]atomic.Pointer[owner]] // by page: the slab there, or the long block that begins there
}

// hooks are set by tests only, before the first use.
type hooks struct {
	noOrder   bool // what was freed in any stream is reused at once
	noPacking bool // the next slab to allocate from is the one in which a block was freed last
	noLending bool // free blocks of a slab are its home's alone
	noWait    bool // an Alloc that finds nothing waits for no other call
}

// gauge is a number and the most that it has been.
type gauge struct {
	now, peak atomic.Int64
}

func (g *gauge) add(by int64) {
	if now := g.now.Add(by); by > 0 {
		for peak := g.peak.Load(); now > peak && !g.peak.CompareAndSwap(peak, now); peak = g.peak.Load() {
		}
	}
}

var _ Allocator = (*Pool)(nil)

// New makes a pool of dev's memory. It reserves addresses, but no memory yet. It returns ErrInvalid
// for options that make no sense, such as a Max below one chunk. The caller must Close the pool,
// before dev.
func New(dev *vmm.Device, o Options) (_ *Pool, err error) {
	defer func() { err = wrapNamed(dev, "make pool", o.Name, 0, 0, err) }()
	if o.Name, err = inside.VMM.CopyName(o.Name); err != nil {
		return nil, err
	}
	if dev.Driver() == nil {
		return nil, fmt.Errorf("%w: no device", vmm.ErrInvalid)
	}
	info := dev.Info()
	gran, err := dev.Driver().Granularity(vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice, ID: info.Ordinal}, Share: o.Share})
	if err != nil {
		return nil, err
	}
	if err := o.resolve(gran, info.Memory); err != nil {
		return nil, err
	}
	p := &Pool{
		dev:        dev,
		log:        inside.VMM.HistoryLog(dev),
		name:       o.Name,
		classes:    newClasses(o.Align),
		unit:       max(pageSize, o.Align),
		chunk:      o.ChunkSize,
		chunkShift: bits.TrailingZeros64(o.ChunkSize),
		most:       int(o.Max / o.ChunkSize),
		prop:       vmm.Prop{Share: o.Share},
		onOOM:      o.OnOOM,
	}
	p.none.pool = p
	p.noneUnderWay.L, p.moved.L = &p.mu, &p.mu
	p.lastSlabs = make([]atomic.Pointer[slab], len(p.classes.sizes))
	p.reuse.Store(uint32(ReuseAll &^ o.NoReuse))
	p.threshold.Store(o.ReleaseThreshold)
	if p.res, err = dev.Reserve(o.Addresses, vmm.ReserveOptions{Align: o.Align, Name: o.Name, Owner: p}); err != nil {
		return nil, err
	}
	p.base = p.res.Ptr()
	p.layOut()
	p.stops = []func(){dev.OnPressure(p.onPressure), dev.OnSync(p.onSync)}
	return p, nil
}

// layOut divides the addresses into regions, each of which is one hole.
func (p *Pool) layOut() {
	size := p.res.Size() / p.chunk * p.chunk
	p.slots = make([]slot, size/p.chunk)
	quarter := size / p.chunk / 4 * p.chunk
	p.mu.Lock()
	defer p.mu.Unlock()
	off := uint64(0)
	for i, end := range [regionCount]uint64{quarter, 2 * quarter, size} {
		p.regions[i].index = i
		if end == off {
			continue
		}
		e := p.newExtentLocked()
		e.region, e.off, e.size = &p.regions[i], off, end-off
		p.regions[i].first = e
		p.addHoleLocked(e)
		off = end
	}
}

// Alloc returns n bytes for work that is queued on s from now on. It looks for memory in this
// order:
//
//  1. memory freed in s
//  2. idle memory, whose work is known to have ended
//  3. memory freed in streams that s waits for (ReuseFollowEvents)
//  4. memory that proves idle when the driver is asked (ReuseOpportunistic)
//  5. idle chunks at other addresses, which are moved
//  6. new chunks, up to Options.Max
//  7. memory freed in another stream, for which s then waits (ReuseInternalDependencies)
//  8. memory that Options.OnOOM frees
//
// Steps 1 to 3 make no driver call. Steps 5 and 7 look at memory of blocks of all sizes, earlier
// steps only where blocks of about n bytes lie. In step 7 Alloc itself waits if chunks have to
// move, or other calls are moving some.
//
// A block of up to 64 KiB comes from its stream's slab of that size. If that is full, it comes from
// blocks of slabs that were freed in other streams (3, 4). Only a new slab takes memory as above.
// In step 7 the block comes from any slab.
//
// Alloc returns ErrClosed for a closed stream, ErrCapturing for one that is being captured, and
// ErrInvalid for one of a device without access. The text of ErrOutOfMemory says where the pool's
// memory is, and which streams could not be waited for.
func (p *Pool) Alloc(s *vmm.Stream, n uint64) (Block, error) {
	st, err := p.stream(s)
	for errors.Is(err, errClosed) && p.openAgain() {
		st, err = p.stream(s)
	}
	if err == nil {
		var b Block
		var ok bool
		if n-1 < p.classes.most {
			b, ok = st.allocSmall(p.classes.of(n), n)
		}
		if !ok {
			b, err = p.alloc(st, n)
			for errors.Is(err, errClosed) && p.openAgain() {
				b, err = p.alloc(st, n)
			}
		}
		if err == nil {
			if p.log.KeepsBlocks() {
				b.note(p.log, history.Alloc, s, p.name)
			}
			return b, nil
		}
	}
	return Block{}, p.fail("allocate", 0, n, err)
}

// Free frees b once the work that s has now has ended. Until then its memory is reused in s only,
// or as Alloc says. Free returns ErrDoubleFree for a block freed before, ErrForeignBlock for one of
// another pool, and ErrBusy for one that HoldBlock holds. If Free fails, b is allocated as before.
// After ErrClosed or ErrCapturing it can be freed in another stream, or by FreeNow. Several
// goroutines may free different blocks at once. If two free the same one, one gets ErrDoubleFree.
func (p *Pool) Free(s *vmm.Stream, b Block) error {
	st, err := p.stream(s)
	if err == nil {
		err = p.free(st, b)
	}
	if err == nil && p.log.KeepsBlocks() {
		b.note(p.log, history.Free, s, p.name)
	}
	return p.fail("free", b.ptr, b.size, err)
}

// endBlock ends a block, whose number the pool has there: the next block at the address is another one,
// and no heap profile has it. The caller has the lock without which none is allocated there yet. Only who
// ended it may read its sample, if there is one.
func endBlock(number *atomic.Uint64, seq uint64, sample **memsample.Sample) error {
	if !number.CompareAndSwap(seq, 0) {
		return notAllocated(number, seq)
	}
	if sample != nil && *sample != nil {
		(*sample).End()
		*sample = nil
	}
	return nil
}

func (p *Pool) free(st *stream, b Block) error {
	switch {
	case b.in == nil || b.in.pool != p:
		return ErrForeignBlock
	case b.in.slab != nil:
		return p.freeInSlab(st, b.in.slab, b)
	case b.in.ext == nil:
		return nil // of 0 bytes
	}
	return p.keep(st, b.in.ext, b)
}

// FreeNow frees a block that no work uses any more, as cudaFree may be called for memory of
// cudaMallocAsync. It does not wait. It works even if the stream is closed or captured. The errors
// are ErrDoubleFree, ErrForeignBlock, and ErrBusy for a block that HoldBlock holds.
func (p *Pool) FreeNow(b Block) error {
	err := ErrForeignBlock
	if p != nil {
		err = p.freeNow(b)
	}
	if err == nil && p.log.KeepsBlocks() {
		b.note(p.log, history.Free, nil, p.name)
	}
	return p.fail("free", b.ptr, b.size, err)
}

func (p *Pool) freeNow(b Block) error {
	switch {
	case b.in == nil || b.in.pool != p:
		return ErrForeignBlock
	case b.in.slab != nil:
		return p.freeInSlabNow(b.in.slab, b)
	case b.in.ext == nil:
		return nil // of 0 bytes
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := b.in.ext
	if err := endBlock(&e.seq, b.seq, &e.sample); err != nil {
		return err
	}
	p.setOwnersLocked(e, nil)
	p.long.count(p, -1, e.size)
	p.long.pages -= e.size
	p.freeLocked(e, e.by, e.stamp) // idle, unless earlier work may still use it
	return nil
}

func (p *Pool) allows(r Reuse) bool { return Reuse(p.reuse.Load())&r != 0 } //nolint:gosec // a Reuse was stored

// sample decides whether a heap profile samples a block of so many bytes. It is called, with the lock
// that guards due, before another call can find the block.
func (p *Pool) sample(due *memsample.Countdown, size uint64) *memsample.Sample {
	if !due.Due(size) {
		return nil
	}
	return due.Sample(inside.VMM.Samples(p.dev), &memsample.Source{Kind: memsample.Block, Name: p.name}, size)
}
