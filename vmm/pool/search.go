package pool

import (
	"errors"
	"fmt"
	"math"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/vmm"
)

// want is what an Alloc looks for.
type want struct {
	n     uint64  // bytes that were asked for; 0: pages for a slab, for which there is another way
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
	f, err := p.takeLockedFor(st, want{n: n, size: size, r: p.regionOf(size), class: class})
	if err != nil || f.block.in != nil {
		return f.block, err
	}
	e := f.pages
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

// found is what a search has found: pages, which are in no list any more, or a block of a slab.
type found struct {
	pages *extent
	block Block
}

// takeLockedFor takes memory for st.
func (p *Pool) takeLockedFor(st *stream, w want) (found, error) {
	if p.closed.Load() {
		return found{}, errClosed
	}
	if e := p.findLocked(st, w.size, w.r, p.allows(ReuseFollowEvents)); e != nil {
		return found{pages: e}, nil
	}
	p.underWay++
	defer p.doneLocked()
	return p.findSlowlyLocked(st, w)
}

// doneLocked ends a call that p.underWay counts.
func (p *Pool) doneLocked() {
	if p.underWay--; p.underWay == 0 {
		p.noneUnderWay.Broadcast()
	}
}

// findSlowlyLocked finds memory for st, in the order that Alloc documents. It releases p.mu
// meanwhile.
func (p *Pool) findSlowlyLocked(st *stream, w want) (f found, err error) {
	f.pages, err = p.findOrCreateLocked(st, w)
	if w.n == 0 {
		return f, err
	}
	p.waiting.Add(1) // from now on a Sync gives nothing back
	defer p.waiting.Add(-1)
	for errors.Is(err, vmm.ErrOutOfMemory) {
		f, again, reasons, failed := p.lookAtAllLocked(st, w)
		switch {
		case f.pages != nil || f.block.in != nil:
			return f, nil
		case p.closed.Load():
			return f, errClosed
		case failed != nil:
			return f, failed
		case !again:
			if gone := p.askForMemoryLocked(st, w, p.exhausted(err, reasons)); gone != nil {
				return f, gone
			}
		}
		f.pages, err = p.findOrCreateLocked(st, w)
		if err == nil {
			return f, nil
		}
	}
	return f, err
}

// askForMemoryLocked calls Options.OnOOM, and returns nil if Alloc is to try again. If not it
// returns err, or why there can be no more tries. It releases p.mu meanwhile.
func (p *Pool) askForMemoryLocked(st *stream, w want, err error) error {
	if p.onOOM == nil {
		return err
	}
	retry := p.callOnOOMLocked(st, w)
	if p.closed.Load() {
		return errClosed
	}
	if gone := st.s.Usable(); gone != nil {
		return gone
	}
	if !retry {
		return err
	}
	return nil
}

// callOnOOMLocked calls Options.OnOOM without p.mu. It has p.mu again when it returns, and also when the
// function panics or ends the goroutine: the callers' deferred calls need it.
func (p *Pool) callOnOOMLocked(st *stream, w want) (retry bool) {
	p.doneLocked() // the function may close the pool, which waits for calls under way
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.underWay++
	}()
	return p.onOOM(st.s, w.n)
}

// findOrCreateLocked is the search without a wait, which looks at one thing after the other and
// holds up no other call. It releases p.mu meanwhile.
func (p *Pool) findOrCreateLocked(st *stream, w want) (*extent, error) {
	p.mu.Unlock()
	p.releaseKept(st)
	p.mu.Lock()
	if e := p.searchLocked(st, w.size, w.r); e != nil {
		return e, nil
	}
	// New memory comes last. Before it come idle chunks elsewhere, slabs without blocks that
	// the streams keep, and free memory where blocks of other sizes lie.
	e, err := p.growLocked(st, w, mapping{create: p.tightLocked(w.r)})
	if errors.Is(err, errMustCreate) || errors.Is(err, vmm.ErrOutOfMemory) {
		p.gather(p.allows(ReuseOpportunistic))
		if e = p.searchLocked(st, w.size, w.r); e != nil {
			return e, nil
		}
		e, err = p.growLocked(st, w, mapping{})
	}
	for i := 1; i < regionCount && errors.Is(err, errMustCreate); i++ {
		if e = p.findLocked(st, w.size, &p.regions[(w.r.index+i)%regionCount], p.allows(ReuseFollowEvents)); e != nil {
			return e, nil
		}
	}
	if errors.Is(err, errMustCreate) {
		e, err = p.growLocked(st, w, mapping{create: true})
	}
	return e, err
}

// tightLocked reports whether so little is free where short blocks lie, less than 1/16 of what is
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
	return p.takeJoinedLocked(st, size, r)
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
