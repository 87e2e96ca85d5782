package pool

import (
	"fmt"

	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/vmm"
)

// Resize makes b n bytes long, in place. If s is not the stream of Alloc, the caller must order s
// after that, as for Free.
//
// To lengthen b, Resize uses free memory behind it that s may have without a wait, and maps memory
// where there are only addresses. It returns ErrNoRoom if that is not enough, and ErrOutOfMemory if
// there is no memory to map. If b becomes shorter, the rest is freed in s. A block in a slab has
// the slab's size, and no memory changes hands. The other errors are those of Free, and ErrInvalid
// for 0 bytes. After an error nothing has changed.
//
// The returned block is the same one with another Size: free only one of the two values. No Free or
// Resize of the block may run meanwhile.
func (p *Pool) Resize(s *vmm.Stream, b Block, n uint64) (Block, error) {
	st, err := p.stream(s)
	if err == nil {
		err = p.resize(st, b, n)
	}
	if err != nil {
		return b, p.fail("resize", b.ptr, n, err)
	}
	b.size = n
	if p.log.KeepsBlocks() {
		b.note(p.log, history.Resize, s, p.name)
	}
	return b, nil
}

func (p *Pool) resize(st *stream, b Block, n uint64) error {
	switch {
	case b.in == nil || b.in.pool != p:
		return ErrForeignBlock
	case n == 0:
		return fmt.Errorf("%w: a size of 0", vmm.ErrInvalid)
	case b.in.slab != nil:
		sl := b.in.slab
		switch {
		case sl.seqs[sl.index(b.ptr)].Load() != b.seq:
			return notAllocated(&sl.seqs[sl.index(b.ptr)], b.seq)
		case n > sl.size:
			return ErrNoRoom
		}
		return nil
	case b.in.ext == nil:
		return ErrNoRoom // of 0 bytes
	case n > uint64(len(p.slots))*p.chunk:
		return ErrNoRoom
	}
	p.releaseKept(p.list()...) // it may lie behind the block
	size := (n + p.unit - 1) &^ (p.unit - 1)
	stamp := st.point()
	p.mu.Lock()
	defer p.mu.Unlock()
	// No other call frees, holds or resizes the block meanwhile.
	e := b.in.ext
	if !e.seq.CompareAndSwap(b.seq, b.seq|resizingBit) {
		return notAllocated(&e.seq, b.seq)
	}
	defer e.seq.Store(b.seq)
	was := e.size
	switch {
	case size < was:
		p.setOwnersLocked(e, nil)
		p.shortenLocked(e, size, st, stamp)
		p.setOwnersLocked(e, &e.owner)
	case size > was:
		if err := p.lengthen(e, size, st); err != nil {
			return err
		}
	}
	if size != was { // to a profile that is another block
		e.sample.End()
		e.sample = p.sample(&p.due, size)
	}
	by := int64(size) - int64(was) //nolint:gosec // far below 2^63
	p.long.used += by
	p.long.pages += uint64(by) //nolint:gosec // a share of it, which may be negative
	p.long.charged += by
	p.used.add(by)
	return nil
}

// shortenLocked frees what is behind the first size bytes of a block.
func (p *Pool) shortenLocked(e *extent, size uint64, st *stream, stamp uint64) {
	rest := p.newExtentLocked()
	rest.region, rest.off, rest.size = e.region, e.off+size, e.size-size
	rest.prev, rest.next = e, e.next
	if e.next != nil {
		e.next.prev = rest
	}
	e.next, e.size = rest, size
	p.freeLocked(rest, st, stamp)
}

// lengthen makes a block size bytes long. p.mu is held, and released while memory is mapped.
func (p *Pool) lengthen(e *extent, size uint64, st *stream) error {
	p.updateIdleLocked()
	missing := size - e.size
	var free uint64 // behind the block
	next := e.next
	for ; next != nil && free < missing && p.usableLocked(next, st, p.allows(ReuseFollowEvents)); next = next.next {
		free += next.size
	}
	var s site
	if free < missing {
		if next == nil || next.kind != kindHole {
			return ErrNoRoom
		}
		s.chunks = int((missing - free + p.chunk - 1) / p.chunk) //nolint:gosec // not above the slots
		if uint64(s.chunks)*p.chunk > next.size {                //nolint:gosec // not negative
			return ErrNoRoom
		}
	}
	// The free memory first, so that no other call takes it while the rest is mapped.
	var all []*extent
	for x := e.next; x != next; x = x.next {
		all = append(all, p.takeLocked(x, x.size))
		x.kind = kindBusy
	}
	if s.chunks > 0 {
		s.hole = p.takeHoleLocked(next, uint64(s.chunks)*p.chunk) //nolint:gosec // not negative
		p.underWayLocked(1)
		m := search{Pool: p, st: st, want: want{size: s.hole.size}}
		m.carryOut(m.mapLocked(mapping{site: s, create: true}))
		p.underWayLocked(-1)
		if m.err != nil {
			for _, x := range all {
				p.freeLocked(x, x.by, x.stamp) // the stream may have been closed meanwhile
			}
			return m.err
		}
		all = append(all, s.hole)
	}
	p.setOwnersLocked(e, nil)
	var by *stream
	for _, x := range all {
		if x.by != nil {
			by = st // its work comes after that of x.by
		}
		p.joinLocked(e)
	}
	if e.size > size {
		p.shortenLocked(e, size, by, st.point()) // what is left may come from any of them
	}
	if by != nil {
		e.by, e.stamp = by, st.point()
	}
	p.setOwnersLocked(e, &e.owner)
	return nil
}

// usableLocked reports whether st may have a piece of free memory without a wait.
func (p *Pool) usableLocked(e *extent, st *stream, follow bool) bool {
	return e.kind == kindFree && (e.list == &p.idle || e.stamp < p.reach(st, e.list.st, follow))
}
