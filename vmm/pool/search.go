package pool

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/vmm"
)

// want is what an Alloc looks for.
type want struct {
	n     uint64  // bytes that were asked for; 0: pages for a slab; if there are none, allocInSlab looks for the block
	size  uint64  // bytes of the pages
	r     *region // where they lie best
	class int     // of a block that may lie in a slab; -1: none
}

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
		return Block{}, p.errMaximum()
	}
	return p.allocPages(st, n, -1)
}

// errMaximum is for what is beyond Options.Max.
func (p *Pool) errMaximum() error {
	return fmt.Errorf("%w: the pool's maximum is %s", vmm.ErrOutOfMemory, errtext.Size(uint64(p.most)*p.chunk)) //nolint:gosec // not negative
}

// allocPages allocates a block that is in no slab; or in one, if class is not -1 and there are no
// pages.
func (p *Pool) allocPages(st *stream, n uint64, class int) (Block, error) {
	size := (n + p.unit - 1) &^ (p.unit - 1)
	if b, err := p.allocKept(st, size, n); err != nil || b.in != nil {
		return b, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e, b, err := p.obtain(st, want{n: n, size: size, r: p.regionOf(size), class: class})
	if err != nil || b.in != nil {
		return b, err
	}
	p.longSeq++
	e.kind = kindBlock
	e.usedBy(st)
	e.sample = p.sample(&p.due, size)
	e.seq.Store(p.longSeq)
	p.setOwnersLocked(e, &e.owner)
	p.long.count(p, 1, size)
	p.long.pages += size
	return Block{ptr: p.base + vmm.Ptr(e.off), size: n, in: &e.owner, seq: p.longSeq}, nil
}

// obtain takes memory for st: pages, which are in no list then, or a block of a slab. p.mu is held, and
// released meanwhile if nothing is known to be free.
func (p *Pool) obtain(st *stream, w want) (*extent, Block, error) {
	if p.closed.Load() {
		return nil, Block{}, errClosed
	}
	if e := p.findLocked(st, w.size, w.r, p.allows(ReuseFollowEvents)); e != nil {
		return e, Block{}, nil
	}
	p.underWayLocked(1)
	s := searches.Get().(*search) //nolint:forcetypeassert // nothing else is in it
	*s = search{Pool: p, want: w, st: st}
	defer func() {
		p.waiting.Add(-s.waits)
		p.underWayLocked(-1)
		*s = search{}
		searches.Put(s)
	}()
	for s.again(); s.lacks() && s.at < len(steps); {
		x := &steps[s.at]
		s.at++
		if x.when == nil || x.when(s) {
			s.carryOut(*x)
		}
	}
	return s.pages, s.block, s.err
}

// searches are used again, so that an Alloc allocates nothing.
var searches = sync.Pool{New: func() any { return new(search) }}

// underWayLocked counts calls that work on memory without p.mu.
func (p *Pool) underWayLocked(by int) {
	if p.underWay += by; p.underWay == 0 {
		p.noneUnderWay.Broadcast()
	}
}

// addUnderWay is underWayLocked for a caller without p.mu.
func (p *Pool) addUnderWay(by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.underWayLocked(by)
}

// search is one Alloc for which no memory is known to be free.
type search struct {
	*Pool
	want
	st      *stream
	at      int       // the next of steps
	err     error     // why there is no memory so far; nil: there is
	pages   *extent   // the memory,
	block   Block     // or a block of a slab
	mapping mapping   // the last one
	streams []*stream // all of them, while they are locked
	waits   int32     // how often Pool.waiting counts the search
	reasons []string  // where the pool's memory is, for the text of the error
}

// step is a part of a search. unlocked runs first, without Pool.mu; locked runs after it, with Pool.mu,
// which it does not release. locked returns a step that follows at once; one without locked ends that.
type step struct {
	when     func(*search) bool // nil: always
	unlocked func(*search)      // nil: Pool.mu is not released
	all      bool               // locked has all streams locked, and unlocks them
	locked   func(*search) step
}

// steps are what a search does, in this order, until it has found memory. Numbers are those of Alloc.
var steps = []step{
	// Where blocks of the size lie: 1 to 4.
	{unlocked: (*search).releaseOwn, locked: (*search).findHereLocked},
	{when: (*search).mayAsk, locked: (*search).findEndedLocked},
	{locked: (*search).findJoinedLocked},
	// Idle chunks from elsewhere: 5. Then all of it again with what streams keep and no block uses.
	{locked: (*search).growFirstLocked},
	{unlocked: (*search).gatherAll, locked: (*search).findHereLocked},
	{when: (*search).mayAsk, locked: (*search).findEndedLocked},
	{locked: (*search).findJoinedLocked},
	{locked: (*search).growOfIdleLocked},
	// Where blocks of other sizes lie, then new chunks: 6.
	{when: (*search).mustCreate, locked: (*search).findElsewhereLocked},
	{when: (*search).mustCreate, locked: (*search).growLocked},
	// All memory at one moment: 7. For a slab there is another way.
	{when: (*search).forBlock, unlocked: (*search).askAll, all: true, locked: (*search).lookLocked},
	{when: (*search).refused, all: true, locked: (*search).lookAgainLocked},
	{when: (*search).othersMove, unlocked: (*search).waitForOthers, locked: (*search).again},
	// Options.OnOOM: 8.
	{when: (*search).forBlock, locked: (*search).exhaustedLocked},
}

// carryOut carries out a step, and those that follow at once. Pool.mu is held, and released meanwhile.
func (s *search) carryOut(x step) {
	for x.locked != nil {
		if x.unlocked != nil || x.all {
			s.without(x)
		}
		x = x.locked(s)
	}
}

// without runs what a step does without Pool.mu. No other function releases a lock of its caller. It
// has Pool.mu again when it returns, and also when Options.OnOOM panics or ends the goroutine: the
// callers' deferred calls need it.
func (s *search) without(x step) {
	s.mu.Unlock()
	defer func() {
		if x.all {
			s.streams = s.lockAll()
			return
		}
		s.mu.Lock()
	}()
	if x.unlocked != nil {
		x.unlocked(s)
	}
}

// lacks reports whether there is too little memory so far. After another error no step helps.
func (s *search) lacks() bool { return s.mustCreate() || errors.Is(s.err, vmm.ErrOutOfMemory) }

// foundLocked ends the search if e is memory.
func (s *search) foundLocked(e *extent) step {
	if e != nil {
		s.pages, s.err = e, nil
	}
	return step{}
}

// again has the first step follow.
func (s *search) again() step {
	s.at, s.err = 0, errMustCreate
	return step{}
}

func (s *search) forBlock() bool   { return s.n > 0 }
func (s *search) mayAsk() bool     { return s.allows(ReuseOpportunistic) }
func (s *search) mustCreate() bool { return errors.Is(s.err, errMustCreate) }

func (s *search) releaseOwn() { s.releaseKept(s.st) }
func (s *search) gatherAll()  { s.gather(s.mayAsk()) }

// findHereLocked looks where blocks of the size lie.
func (s *search) findHereLocked() step {
	s.updateIdleLocked()
	return s.foundLocked(s.findLocked(s.st, s.size, s.r, s.allows(ReuseFollowEvents)))
}

// findEndedLocked is findHereLocked once the driver was asked what has ended.
func (s *search) findEndedLocked() step {
	s.queryStreamsLocked()
	return s.findHereLocked()
}

// findElsewhereLocked looks where blocks of other sizes lie.
func (s *search) findElsewhereLocked() step {
	for i := 1; i < regionCount && s.mustCreate(); i++ {
		s.foundLocked(s.findLocked(s.st, s.size, &s.regions[(s.r.index+i)%regionCount], s.allows(ReuseFollowEvents)))
	}
	return step{}
}

// growFirstLocked is growOfIdleLocked, or growLocked if so little is free where short blocks lie, less
// than 1/16 of what is mapped there, that to search for it costs more than new memory.
func (s *search) growFirstLocked() step {
	free := s.idle.bytes[s.r.index]
	for _, st := range s.all {
		free += st.free.bytes[s.r.index]
	}
	return s.mapLocked(mapping{create: s.r.index == 0 && free < s.r.mapped/16})
}

// growOfIdleLocked maps chunks that are idle elsewhere, growLocked also new ones.
func (s *search) growOfIdleLocked() step { return s.mapLocked(mapping{}) }
func (s *search) growLocked() step       { return s.mapLocked(mapping{create: true}) }

// othersMove reports whether memory is in no list because another call is moving it. Once that call
// is done it may be there.
func (s *search) othersMove() bool { return s.forBlock() && s.moving > 0 && !s.hooks.noWait }

// waitForOthers waits until another call has moved memory.
func (s *search) waitForOthers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.moving > 0 {
		s.moved.Wait()
	}
}

// exhaustedLocked has the error say where memory is. Options.OnOOM may free some.
func (s *search) exhaustedLocked() step {
	s.err = s.exhausted(s.err, s.reasons)
	if s.onOOM == nil {
		return step{}
	}
	return step{unlocked: (*search).callOnOOM, locked: (*search).calledOnOOMLocked}
}

func (s *search) callOnOOM() {
	s.addUnderWay(-1) // the function may close the pool, which waits for calls under way
	defer s.addUnderWay(1)
	if s.onOOM(s.st.s, s.n) {
		s.again()
	}
}

// calledOnOOMLocked ends the search if the function has closed the pool or the stream.
func (s *search) calledOnOOMLocked() step {
	if s.closed.Load() {
		s.err = errClosed
	} else if gone := s.st.s.Usable(); gone != nil {
		s.err = gone
	}
	return step{}
}

// reach is the stamp below which st may use what was freed in t: at once. Of st itself that is
// everything, of others what is known to have ended and, if follow is set, what comes before st's
// work from now on. All memory is decided on by it: pages, slabs, and blocks of slabs.
func (p *Pool) reach(st, t *stream, follow bool) uint64 {
	switch {
	case t == st || p.hooks.noOrder:
		return math.MaxUint64
	case follow:
		after := st.after(t) // first: it leaves out what has been shown to have ended by now
		return max(after, t.finished())
	}
	return t.finished()
}

// reachEnded is reach of work that is known to have ended, reachFollowing also of work that st waits for.
func (p *Pool) reachEnded(st, t *stream) uint64     { return p.reach(st, t, false) }
func (p *Pool) reachFollowing(st, t *stream) uint64 { return p.reach(st, t, true) }
