package pool

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm"
)

// stream is what a pool knows of one stream.
type stream struct {
	// Immutable.
	s      *vmm.Stream
	p      *Pool
	number uint64 // no other stream of the pool has it

	denied atomic.Bool // its device has no access

	_ [64]byte // other streams' calls read what is above, and this one's write what is below

	mu      sync.Mutex // comes before Pool.mu
	seq     uint64     // of the last block; the upper bits are the stream's own
	classes []ofClass
	slabs   int  // whose home it is
	gone    bool // the stream is forgotten, or the pool closed
	counts

	// Guarded by Pool.mu.
	free   home
	fences []fence
}

// fence is a point of a stream that the pool asks for.
type fence struct {
	f     vmm.Fence
	after uint64 // everything freed up to this stamp has ended when f is done
}

// counts are a stream's share of Stats. A block may be freed in another stream than the one
// it was allocated in, so a share may be negative.
type counts struct {
	blocks, used  int64
	charged       int64 // of used, what Pool.used includes
	allocs, frees uint64
}

// slack is how much less than charged a stream may use.
const slack = 1 << 20

// count counts blocks of a stream, whose mu is held. Pool.used changes only if used rises
// beyond what is charged, or falls far below it. If there are several streams, each is charged
// a little in advance: so they do not wait for each other, and the most that was ever used is
// still known, give or take slack for each.
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
	if by := c.used - c.charged; by > 0 || by < -slack {
		if p.several.Load() {
			by += slack / 2
		}
		c.charged += by
		p.used.add(by)
	}
}

// stream returns what the pool knows of s, which must be usable.
func (p *Pool) stream(s *vmm.Stream) (*stream, error) {
	if p == nil || p.res == nil {
		return nil, fmt.Errorf("%w: no pool", vmm.ErrInvalid)
	}
	if err := s.Usable(); err != nil {
		return nil, err
	}
	st := p.last.Load()
	if st == nil || st.s != s {
		var err error
		if st, err = p.lookUp(s); err != nil {
			return nil, err
		}
	}
	if st.denied.Load() {
		return nil, fmt.Errorf("%w: %v has no access to the pool of %v", vmm.ErrInvalid, s.Device(), p.dev)
	}
	return st, nil
}

// streamBits is how many bits of a block's number its stream counts with.
const streamBits = 40

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
	st := &stream{s: s, p: p, number: p.streamIDs, seq: p.streamIDs << streamBits, classes: make([]ofClass, len(p.classes.sizes))}
	st.free.st = st
	st.denied.Store(p.res.Access(s.Device()) == vmm.AccessNone)
	p.setStreamsLocked(append(p.all[:len(p.all):len(p.all)], st))
	p.streams.Store(s, st)
	if old := p.last.Load(); old == nil || !old.open() {
		p.last.Store(st)
	}
	return st, nil
}

// open says whether the stream was not closed yet.
func (st *stream) open() bool { return st.s.Finished() != math.MaxUint64 }

// forgetClosed forgets closed streams of which nothing is left.
func (p *Pool) forgetClosed() {
	var closed []*stream
	for _, st := range p.list() {
		if !st.open() {
			closed = append(closed, st)
		}
	}
	for _, st := range closed {
		for class := range st.classes {
			p.giveForeign(st, class, nil)
		}
		p.releaseEmpty(st)
		st.mu.Lock()
		p.mu.Lock()
		p.settleLocked()
		if st.slabs == 0 && st.free.newest == nil && !st.hasForeign() {
			p.forgetLocked(st)
		}
		p.mu.Unlock()
		st.mu.Unlock()
	}
}

// forgetLocked takes a closed stream, whose mu is held too, off the lists. Its counts stay.
func (p *Pool) forgetLocked(st *stream) {
	if st.gone {
		return
	}
	st.gone = true
	p.setStreamsLocked(slices.DeleteFunc(slices.Clone(p.all), func(x *stream) bool { return x == st }))
	p.past.blocks += st.blocks
	p.past.used += st.used
	p.past.charged += st.charged
	p.past.allocs += st.allocs
	p.past.frees += st.frees
	p.streams.Delete(st.s)
	p.last.CompareAndSwap(st, nil)
	p.dropFencesLocked(st)
}

func (st *stream) hasForeign() bool {
	for i := range st.classes {
		if len(st.classes[i].foreign) > 0 {
			return true
		}
	}
	return false
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

// askLocked asks the driver how far the streams have come in which memory was freed.
func (p *Pool) askLocked() {
	for _, t := range p.all {
		if t.free.oldest != nil && t.free.oldest.stamp >= t.s.Finished() {
			p.askStreamLocked(t, t.free.newest.stamp)
		}
	}
}

// askStreamLocked asks the driver whether a stream has come to where memory was last freed.
// How far it has come, t.s.Finished returns from then on.
func (p *Pool) askStreamLocked(t *stream, newest uint64) {
	var last uint64
	p.dropReachedLocked(t)
	if n := len(t.fences); n > 0 {
		last = t.fences[n-1].after
	}
	if newest < t.s.Finished() {
		return
	}
	if done, err := t.s.Done(); done || err != nil {
		return
	}
	if last <= newest {
		p.fenceLocked(t)
	}
}

// dropReachedLocked gives up fences that the stream has come to.
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

// mostFences is how many fences of a stream the pool keeps.
const mostFences = 8

// fenceLocked records a fence, which covers what has been freed in the stream so far. If it
// cannot be recorded, or there are many that the stream has not come to, the memory waits for
// another occasion.
func (p *Pool) fenceLocked(t *stream) {
	if len(t.fences) == mostFences {
		return
	}
	after := t.s.Point() + 1
	if f, err := t.s.Fence(); err == nil {
		t.fences = append(t.fences, fence{f, after})
	}
}

func (p *Pool) dropFencesLocked(t *stream) {
	for i := range t.fences {
		t.fences[i].f.Free()
	}
	t.fences = nil
}
