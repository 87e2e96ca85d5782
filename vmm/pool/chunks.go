package pool

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

// site is addresses where memory is about to be mapped.
type site struct {
	before *extent   // free memory in front of the hole, with which the block begins; nil: none
	list   *freeList // from which before was taken
	hole   *extent   // taken out of the holes, of whole chunks
	chunks int
}

var errMustCreate = errors.New("idle chunks are not enough")

// growLocked maps memory for size bytes: chunks that are idle elsewhere, then, if create is
// set, new ones, else it returns errMustCreate. It completes or changes nothing. It releases
// p.mu meanwhile.
func (p *Pool) growLocked(st *stream, size uint64, r *region, create bool) (*extent, error) {
	s, ok := p.anySiteLocked(st, size, r)
	if !ok && p.bad > 0 {
		p.mu.Unlock()
		p.repair()
		p.mu.Lock()
		s, ok = p.anySiteLocked(st, size, r)
	}
	if !ok {
		return nil, fmt.Errorf("%w: %d bytes of addresses are taken or in pieces too short; see Options.Addresses", vmm.ErrOutOfMemory, p.res.Size())
	}
	if err := p.mapLocked(s, create); err != nil {
		return nil, err
	}
	e := s.hole
	if s.before != nil {
		e = s.before
		e.by = s.list.st
		p.joinLocked(e)
	}
	e.kind = kindBusy
	if e.size == size {
		return e, nil
	}
	f := p.cutFrontLocked(e, size)
	p.freeLocked(e, nil, 0)
	return f, nil
}

// anySiteLocked is siteLocked of the first region that has such addresses, r before the others.
func (p *Pool) anySiteLocked(st *stream, size uint64, r *region) (s site, ok bool) {
	for i := 0; i < regionCount && !ok; i++ {
		s, ok = p.siteLocked(st, size, &p.regions[(r.index+i)%regionCount])
	}
	return s, ok
}

// siteLocked finds and takes the addresses of r where the fewest chunks have to be mapped: a
// hole, with the free memory in front of it that st may use.
func (p *Pool) siteLocked(st *stream, size uint64, r *region) (s site, ok bool) {
	for _, h := range r.holes {
		before := uint64(0)
		if x := h.prev; x != nil && x.kind == kindFree && (x.list == &st.free || x.list == &p.idle) {
			before = x.size
		}
		if before >= size {
			continue // long enough without new memory: the search looks at a bounded number
		}
		k := int((size - before + p.chunk - 1) / p.chunk)                   //nolint:gosec // not above the slots
		if uint64(k)*p.chunk <= h.size && (s.hole == nil || k < s.chunks) { //nolint:gosec // not negative
			s = site{hole: h, chunks: k}
			if before > 0 {
				s.before = h.prev
			}
		}
	}
	if s.hole == nil {
		return s, false
	}
	if s.before != nil {
		s.list = s.before.list
		s.list.remove(s.before)
		s.before.kind = kindBusy
	}
	s.hole = p.takeHoleLocked(s.hole, uint64(s.chunks)*p.chunk) //nolint:gosec // not negative
	return s, true
}

// takeHoleLocked takes the first size bytes of a hole, which are then busy.
func (p *Pool) takeHoleLocked(h *extent, size uint64) *extent {
	p.forgetHoleLocked(h)
	if h.size > size {
		f := p.cutFrontLocked(h, size)
		f.kind = kindBusy
		p.addHoleLocked(h)
		return f
	}
	h.kind = kindBusy
	return h
}

// mapLocked maps memory at a site: spare chunks, then idle ones, which move, then, if mayCreate
// is set, new ones. If that fails no memory is mapped there, and the site is given back. It
// releases p.mu meanwhile.
func (p *Pool) mapLocked(s site, mayCreate bool) error {
	have := p.takeSpareLocked(s.chunks)
	moved := p.takeIdleLocked(s.chunks - len(have))
	create := s.chunks - len(have)
	for _, e := range moved {
		create -= int(e.size / p.chunk) //nolint:gosec // not above the slots
	}
	err, refused := errMustCreate, false
	if create == 0 || mayCreate {
		err = p.chargeLocked(create)
	}
	if err == nil {
		p.mu.Unlock()
		have, err = p.unmap(have, moved)
		if more := s.chunks - len(have) - create; more > 0 && errors.Is(err, vmm.ErrBusy) {
			// A Hold keeps some of them mapped: new ones take their place.
			create, err = p.chargeMore(create, more, mayCreate)
		}
		var created int
		if err == nil {
			have, created, err = p.create(have, s.chunks)
		}
		if err == nil {
			err = p.res.Map(s.hole.off, have...)
			refused = err != nil && !errors.Is(err, vmm.ErrOutOfMemory) && !errors.Is(err, vmm.ErrClosed)
		}
		p.mu.Lock()
		p.chunks.Add(int64(created - create)) // less what was not created after all
		p.chunksPeak = max(p.chunksPeak, p.chunks.Load())
		p.stats.Created += uint64(created) * p.chunk //nolint:gosec // not negative
	}
	p.stats.Remapped += p.putRunsLocked(moved)
	if err == nil {
		for i, c := range have {
			p.slots[s.hole.off/p.chunk+uint64(i)].chunk = c //nolint:gosec // not negative
		}
		s.hole.region.mapped += s.hole.size
		return nil
	}
	p.spare = append(p.spare, have...)
	p.undoSiteLocked(s, refused)
	return err
}

// undoSiteLocked gives a site back. If the driver has refused to map there, it would refuse
// again: the addresses become bad, and are not used before TrimTo, or before there are no others.
func (p *Pool) undoSiteLocked(s site, refused bool) {
	if s.before != nil {
		p.freeLocked(s.before, s.list.st, s.before.stamp) // the stream may have been closed meanwhile
	}
	if !refused {
		p.addHoleLocked(s.hole)
		return
	}
	s.hole.kind = kindBad
	p.bad++
}

// chargeLocked counts chunks that are about to be created, so that calls under way do not
// exceed the maximum together.
func (p *Pool) chargeLocked(create int) error {
	now := p.chunks.Load() + int64(create)
	if now > int64(p.most) {
		return fmt.Errorf("%w: the pool's maximum is %d bytes", vmm.ErrOutOfMemory, uint64(p.most)*p.chunk) //nolint:gosec // not negative
	}
	p.chunks.Store(now)
	return nil
}

// takeSpareLocked takes up to n chunks that are not mapped.
func (p *Pool) takeSpareLocked(n int) []*vmm.Chunk {
	n = min(n, len(p.spare))
	out := p.spare[len(p.spare)-n:]
	p.spare = p.spare[:len(p.spare)-n]
	return append([]*vmm.Chunk(nil), out...)
}

// takeIdleLocked takes up to n whole chunks of idle memory, as runs that are then busy. It
// takes the ends of the shortest runs that have any, so that long ones stay.
func (p *Pool) takeIdleLocked(n int) (out []*extent) {
	for i := range p.regions {
		b := &p.idle.bins[i]
		for bin := b.from(binOf(p.chunk / pageSize)); bin >= 0 && n > 0; {
			e := b.heads[bin]
			for e != nil && p.wholeChunks(e) == 0 {
				e = e.binNext
			}
			if e == nil {
				bin = b.from(bin + 1)
				continue
			}
			m := min(n, p.wholeChunks(e))
			out = append(out, p.takeChunksLocked(e, m))
			n -= m
			bin = b.from(bin) // which may be empty by now
		}
	}
	return out
}

// wholeChunks is how many chunks lie within an extent.
func (p *Pool) wholeChunks(e *extent) int {
	first, last := (e.off+p.chunk-1)/p.chunk, e.end()/p.chunk
	return int(max(first, last) - first) //nolint:gosec // not above the slots
}

// takeChunksLocked takes the last n whole chunks of an idle extent.
func (p *Pool) takeChunksLocked(e *extent, n int) *extent {
	p.idle.remove(e)
	end := e.end() / p.chunk * p.chunk
	off := end - uint64(n)*p.chunk //nolint:gosec // not negative
	if off > e.off {
		p.idle.add(p.cutFrontLocked(e, off-e.off))
	}
	if e.end() > end {
		run := p.cutFrontLocked(e, end-e.off)
		p.idle.add(e)
		e = run
	}
	e.kind = kindBusy
	return e
}

// chargeMore counts more chunks that are about to be created, and returns how many they are
// now.
func (p *Pool) chargeMore(create, more int, mayCreate bool) (int, error) {
	if !mayCreate {
		return create, errMustCreate
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.chargeLocked(more); err != nil {
		return create, err
	}
	return create + more, nil
}

// create adds new chunks to have until there are n, and counts them.
func (p *Pool) create(have []*vmm.Chunk, n int) (all []*vmm.Chunk, created int, err error) {
	for err == nil && len(have) < n {
		var c *vmm.Chunk
		if c, err = p.dev.CreateOrReuse(p.chunk, p.prop); err == nil {
			have = append(have, c)
			created++
		}
	}
	return have, created, err
}

// unmap unmaps idle runs, which are busy, and appends their chunks. Runs that are still mapped
// keep theirs: then it returns an error, ErrBusy if nothing but a Hold keeps them.
func (p *Pool) unmap(chunks []*vmm.Chunk, runs []*extent) (all []*vmm.Chunk, failed error) {
	for _, e := range runs {
		if err := p.res.UnmapNow(e.off, e.size); err != nil {
			if failed == nil || errors.Is(failed, vmm.ErrBusy) {
				failed = err
			}
			continue
		}
		for i := e.off / p.chunk; i < e.end()/p.chunk; i++ {
			chunks = append(chunks, p.slots[i].chunk)
			p.slots[i].chunk = nil
		}
	}
	return chunks, failed
}

// putRunsLocked puts back runs that unmap was called for: as holes, or, where memory is still
// mapped, as idle memory. It returns how many bytes are holes.
func (p *Pool) putRunsLocked(runs []*extent) (unmapped uint64) {
	for _, e := range runs {
		if p.slots[e.off/p.chunk].chunk == nil {
			unmapped += e.size
			e.region.mapped -= e.size
			p.addHoleLocked(e)
			continue
		}
		e.stamp = 0
		p.addFreeLocked(e, &p.idle)
	}
	return unmapped
}
