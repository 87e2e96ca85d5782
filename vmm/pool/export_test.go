package pool

import "github.com/cuvmm/cuvmm/vmm"

// SetNoOrder makes the pool reuse at once, in any stream, what was freed in any stream: the
// negative control of the tests of stream order.
func SetNoOrder(p *Pool) { p.hooks.noOrder = true }

// SetNoPacking has the next slab to allocate from be the one in which a block was freed last.
func SetNoPacking(p *Pool) { p.hooks.noPacking = true }

// Streams is how many streams the pool knows, and how many fences it keeps for them.
func Streams(p *Pool) (streams, fences int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, st := range p.all {
		fences += len(st.fences)
	}
	return len(p.all), fences
}

// Adopt has the second stream take a slab over from the first.
func Adopt(p *Pool, from, to *vmm.Stream, n uint64) {
	t, _ := p.streams.Load(from)
	st, _ := p.streams.Load(to)
	p.adoptFrom(t.(*stream), st.(*stream), p.classes.of(n))
}

// SetNoLending makes free blocks of a slab its home's alone, as long as that is open.
func SetNoLending(p *Pool) { p.hooks.noLending = true }

// SetNoWait has an Alloc that finds nothing wait for no other call.
func SetNoWait(p *Pool) { p.hooks.noWait = true }

// SetSeq makes the number of the stream's last block the last of its lease.
func SetSeq(p *Pool, s *vmm.Stream) {
	st, _ := p.streams.Load(s)
	st.(*stream).seq |= leaseSize - 1
}

// Piece is what lies at some addresses of a pool.
type Piece struct {
	Off, Size uint64
	Region    int
	Hole      bool
	Block     bool   // allocated
	Each      uint64 // of a slab: the size of its blocks
	Live      int    // of them are allocated
	Free      int    // and free
}

// Layout is all addresses of a pool, and how many chunks may be created. No other call may run
// meanwhile.
func Layout(p *Pool) (all []Piece, chunkSize uint64, create int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.regions {
		for e := p.regions[i].first; e != nil; e = e.next {
			x := Piece{Off: e.off, Size: e.size, Region: i, Hole: e.kind == kindHole, Block: e.kind == kindBlock && e.seq.Load() != 0}
			if e.kind == kindSlab {
				sl := (*p.slots[e.off/p.chunk].owners.Load())[e.off%p.chunk/pageSize].Load().slab
				x.Each = sl.size
				for k := range sl.seqs {
					if sl.seqs[k].Load() != 0 {
						x.Live++
					}
				}
				x.Free = len(sl.seqs) - x.Live
			}
			all = append(all, x)
		}
	}
	return all, p.chunk, p.most - int(p.chunks.Load()) + len(p.spare)
}

// PagesOf is how many bytes of pages a block of n bytes may take, alone in its slab.
func PagesOf(p *Pool, n uint64) uint64 {
	if n <= p.classes.most {
		return (slabSize(p.classes.sizes[p.classes.of(n)]) + p.unit - 1) &^ (p.unit - 1)
	}
	return (n + p.unit - 1) &^ (p.unit - 1)
}

// Unit is what pages are multiples of.
func Unit(p *Pool) uint64 { return p.unit }

// SetNoPressure takes back what the pool has registered with OnPressure: the negative control of
// the tests that idle memory is to be had.
func SetNoPressure(p Allocator) {
	switch p := p.(type) {
	case *Pool:
		p.stops[0]()
	case *DriverPool:
		p.stop()
	}
}
