package pool

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
)

// stream is what a pool knows of one stream.
type stream struct {
	// Immutable.
	s      *vmm.Stream
	p      *Pool
	number uint64 // no other stream of the pool has it
	peer   bool   // its device is another one than the pool's

	_ [64]byte // other streams' calls read what is above, and this one's write what is below

	mu      sync.Mutex // comes before Pool.mu
	seq     uint64     // of the last block
	due     memsample.Countdown
	classes []ofClass
	slabs   int // how many slabs it is the home of
	kept    kept
	leases  []uint64
	gone    bool // the stream is forgotten, or the pool is closed or about to be
	counts

	// Guarded by Pool.mu.
	free   freeList
	fences []fence
}

// fences is what package vmm does with fences for this one alone.
var fences = door.Through[order.Fences[*vmm.Stream]]()

// fence is an event of the pool's own in a stream.
type fence struct {
	f     order.Fence
	after uint64 // when f is done, the work has ended of all that was freed with a lower stamp
}

// counts are a stream's share of Stats. A block may be freed in another stream than the one
// it was allocated in, so a share may be negative.
type counts struct {
	blocks, used  int64
	charged       int64  // of used, what Pool.used includes
	pages         uint64 // of used, what is in no slab; a share of it, as above
	allocs, frees uint64
}

// slack is how much less than charged a stream may use, or two blocks if they are longer.
const slack = 1 << 20

// count counts blocks of a stream, whose mu is held. Pool.used changes only if used rises
// beyond what is charged, or falls far below it. If there are several streams, each is charged
// a little in advance, and a pair that frees and allocates moves nothing: so they do not wait for
// each other, and the most that was ever used is still known, give or take slack for each.
func (st *stream) count(blocks int64, size uint64) { st.counts.count(st.p, blocks, size) }

func (c *counts) count(p *Pool, blocks int64, size uint64) {
	if blocks > 0 {
		c.allocs++
		c.used += int64(size) //nolint:gosec // far below 2^63
	} else {
		c.frees++
		c.used -= int64(size) //nolint:gosec // far below 2^63
	}
	c.blocks += blocks
	if by := c.used - c.charged; by > 0 || by < -max(slack, 2*int64(size)) { //nolint:gosec // far below 2^63
		if p.several.Load() {
			by += max(slack/2, int64(size)) //nolint:gosec // far below 2^63
		}
		c.charged += by
		p.used.add(by)
	}
}

func (c *counts) add(o counts) {
	c.blocks += o.blocks
	c.used += o.used
	c.charged += o.charged
	c.pages += o.pages
	c.allocs += o.allocs
	c.frees += o.frees
}

// settle makes what is charged what is used.
func (c *counts) settle(p *Pool) {
	p.used.add(c.used - c.charged)
	c.charged = c.used
}

// stream returns what the pool knows of s, which must be usable.
func (p *Pool) stream(s *vmm.Stream) (*stream, error) {
	if p == nil || p.res == nil {
		return nil, errNoPool
	}
	if err := s.Usable(); err != nil {
		return nil, err
	}
	st := p.first.Load()
	if st == nil || st.s != s {
		var err error
		if st, err = p.lookUp(s); err != nil {
			return nil, err
		}
	}
	if st.peer && p.res.Access(s.Device()) == vmm.AccessNone {
		return nil, fmt.Errorf("%w: %v has no access to the pool of %v", vmm.ErrInvalid, s.Device(), p.dev)
	}
	return st, nil
}

// leaseSize is how many numbers of blocks a stream leases at once. Pool.leases has the stream by
// number / leaseSize.
const leaseSize = 1 << 30

// nextSeq is the number of the next block that the stream allocates: no two blocks of a pool, ever,
// have the same. It needs st.mu.
func (st *stream) nextSeq() uint64 {
	if st.seq++; st.seq%leaseSize == 0 {
		lease := st.p.leased.Add(1)
		st.p.leases.Store(lease, st)
		st.leases = append(st.leases, lease)
		st.seq = lease*leaseSize + 1
	}
	return st.seq
}

// goneErr is why a stream is gone.
func (st *stream) goneErr() error {
	if st.p.closed.Load() {
		return errClosed
	}
	return fmt.Errorf("%w: stream", vmm.ErrClosed)
}

var errClosed = fmt.Errorf("%w: pool", vmm.ErrClosed)

// lookUp finds or makes what the pool knows of s.
func (p *Pool) lookUp(s *vmm.Stream) (*stream, error) {
	if st, ok := p.streams.Load(s); ok {
		return st.(*stream), nil //nolint:forcetypeassert // nothing else is stored
	}
	if s.Device().Driver() != p.dev.Driver() {
		return nil, fmt.Errorf("%w: the stream is of another driver", vmm.ErrInvalid)
	}
	p.forgetClosed()
	p.mu.Lock()
	defer p.mu.Unlock()
	if st, ok := p.streams.Load(s); ok { // another goroutine was faster
		return st.(*stream), nil //nolint:forcetypeassert // nothing else is stored
	}
	if p.closed.Load() {
		return nil, errClosed
	}
	p.streamIDs++
	st := &stream{s: s, p: p, number: p.streamIDs, seq: leaseSize - 1, classes: make([]ofClass, len(p.classes.sizes))}
	st.free.st = st
	st.peer = s.Device() != p.dev
	p.setStreamsLocked(append(p.all[:len(p.all):len(p.all)], st))
	p.streams.Store(s, st)
	if old := p.first.Load(); old == nil || !old.open() {
		p.first.Store(st)
	}
	return st, nil
}

// Stamps are one above the numbers of package vmm, so that 0 is idle.

// point is the stamp of what is freed in the stream now.
func (st *stream) point() uint64 { return st.s.Point() + 1 }

// finished is the stamp below which work is known to have ended.
func (st *stream) finished() uint64 {
	n := st.s.Finished()
	if n == math.MaxUint64 {
		return n
	}
	return n + 1
}

// after is the stamp below which the work of t comes before st's from now on.
func (st *stream) after(t *stream) uint64 { return st.s.After(t.s) + 1 }

// open reports whether the stream was not closed yet.
func (st *stream) open() bool { return st.s.Finished() != math.MaxUint64 }

// forgetClosed forgets closed streams of which nothing is left.
func (p *Pool) forgetClosed() {
	if !slices.ContainsFunc(p.list(), func(st *stream) bool { return !st.open() }) {
		return
	}
	streams := p.lockAll()
	p.gatherLocked(streams)
	for _, st := range streams {
		if !st.open() && st.slabs == 0 && !st.hasFree() {
			p.forgetLocked(st)
		}
	}
	unlockAll(streams)
	p.mu.Unlock()
}

// forgetLocked takes a closed stream off the lists. Its counts stay. It needs st.mu, too.
func (p *Pool) forgetLocked(st *stream) {
	if st.gone {
		return
	}
	st.gone = true
	p.setStreamsLocked(slices.DeleteFunc(slices.Clone(p.all), func(x *stream) bool { return x == st }))
	st.settle(p) // what was charged in advance
	p.past.add(st.counts)
	p.streams.Delete(st.s)
	p.first.CompareAndSwap(st, nil)
	for _, lease := range st.leases {
		p.leases.Delete(lease)
	}
	p.dropFencesLocked(st)
}

// list is the streams as they are now. It takes no lock.
func (p *Pool) list() []*stream {
	if all := p.listed.Load(); all != nil {
		return *all
	}
	return nil
}

// setStreamsLocked sets which streams there are.
func (p *Pool) setStreamsLocked(all []*stream) {
	p.all = all
	p.listed.Store(&all)
	p.several.Store(len(all) > 1)
}

// queryStreamsLocked asks the driver how far the streams have come in which long blocks or slabs
// were freed.
func (p *Pool) queryStreamsLocked() {
	for _, t := range p.all {
		if t.free.oldest != nil && t.free.oldest.stamp >= t.finished() {
			p.queryStreamLocked(t, t.free.newest.stamp)
		}
	}
}

// queryStreamLocked asks the driver how far a stream has come; t.s.Finished returns it from then
// on. If that is not beyond stamp newest it records a fence, unless there is one behind it.
func (p *Pool) queryStreamLocked(t *stream, newest uint64) {
	var last uint64
	p.dropReachedLocked(t)
	if n := len(t.fences); n > 0 {
		last = t.fences[n-1].after
	}
	if newest < t.finished() {
		return
	}
	if done, err := t.s.Done(); done || err != nil {
		return
	}
	if last <= newest {
		p.fenceLocked(t)
	}
}

// dropReachedLocked gives the events back of fences that the stream has reached.
func (p *Pool) dropReachedLocked(t *stream) {
	for len(t.fences) > 0 {
		f := &t.fences[0]
		if done, err := f.f.Done(); err == nil && !done {
			return
		}
		f.f.Free()
		t.fences = t.fences[1:]
	}
}

// mostFences is how many fences of a stream the pool keeps at most.
const mostFences = 8

// fenceLocked records a fence behind all that has been freed in the stream so far. If it cannot
// be recorded, or mostFences are recorded that the stream has not reached, the memory stays
// pending until the pool learns otherwise that its work has ended.
func (p *Pool) fenceLocked(t *stream) {
	if len(t.fences) == mostFences {
		return
	}
	after := t.point() + 1
	if f, err := fences.Fence(t.s); err == nil {
		t.fences = append(t.fences, fence{f, after})
	}
}

// dropFencesLocked gives the events of a stream that is closed, or whose pool is, back.
func (p *Pool) dropFencesLocked(t *stream) {
	for i := range t.fences {
		t.fences[i].f.Free()
	}
	t.fences = nil
}
