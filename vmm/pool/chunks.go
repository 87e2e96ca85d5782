package pool

import (
	"errors"
	"fmt"
	"math"

	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm"
)

// site is addresses where memory is about to be mapped.
type site struct {
	before *extent // free memory in front of the hole, with which the block begins; nil: none
	hole   *extent // taken out of the holes, of whole chunks
	chunks int
}

var errMustCreate = errors.New("idle chunks are not enough")

// mapping is how chunks come to a site: spare and idle ones always. Without a hole they are only
// unmapped, and spare then.
type mapping struct {
	site
	runs   []*extent // of idle chunks, taken for it
	wait   bool      // first, for the work of the search's stream, which may use those that are by it
	create bool      // new chunks may be created
	looked bool      // a look has chosen the site

	have    []*vmm.Chunk // those that are not mapped
	charged int          // how many are to be created: Pool.chunks counts them already
	created int
	moving  bool // Pool.moving counts it
	err     error
}

// anySiteLocked is siteLocked of the first region that has such addresses, the best one before the others.
func (s *search) anySiteLocked() (at site) {
	for i := 0; i < regionCount && at.hole == nil; i++ {
		at = s.siteLocked(s.st, s.size, &s.regions[(s.r.index+i)%regionCount])
	}
	return at
}

// siteLocked finds and takes the addresses of r where the fewest chunks have to be mapped: a
// hole, with the free memory in front of it that st may use.
func (p *Pool) siteLocked(st *stream, size uint64, r *region) site {
	whole := (size + p.chunk - 1) / p.chunk
	s := site{hole: r.holes.find(whole*p.chunk, math.MaxUint64), chunks: int(whole)} //nolint:gosec // not above the slots
	for _, h := range []*freeList{&st.free, &p.idle} {
		if e := h.bins[r.index].beforeHole(size, p.chunk); e != nil {
			k := int((size - e.size + p.chunk - 1) / p.chunk) //nolint:gosec // not above the slots
			if s.before == nil && k <= s.chunks || s.hole == nil || k < s.chunks {
				s = site{before: e, hole: e.next, chunks: k}
			}
		}
	}
	if s.hole == nil {
		return s
	}
	if s.before != nil {
		s.before = p.takeLocked(s.before, s.before.size)
		s.before.kind = kindBusy
	}
	s.hole = p.takeHoleLocked(s.hole, uint64(s.chunks)*p.chunk) //nolint:gosec // not negative
	return s
}

// takeHoleLocked takes the first size bytes of a hole, which are then busy.
func (p *Pool) takeHoleLocked(h *extent, size uint64) *extent {
	h.region.holes.remove(h)
	if h.size > size {
		f := p.cutFrontLocked(h, size)
		f.kind = kindBusy
		p.addHoleLocked(h)
		return f
	}
	h.kind = kindBusy
	return h
}

// mapLocked maps memory at a site: spare chunks, then idle ones, which move, then, if the mapping may
// create them, new ones, else the error is errMustCreate. It completes or changes nothing.
func (s *search) mapLocked(m mapping) step {
	if m.hole == nil {
		m.site = s.anySiteLocked()
	}
	s.mapping = m
	if m.hole == nil && s.bad.Load() > 0 {
		return step{unlocked: (*search).repair, locked: (*search).mapRepairedLocked}
	}
	return s.takeChunksLocked()
}

// mapRepairedLocked is mapLocked with addresses that can be used again.
func (s *search) mapRepairedLocked() step {
	s.mapping.site = s.anySiteLocked()
	return s.takeChunksLocked()
}

// takeChunksLocked takes the chunks for a site, and counts those that are to be created.
func (s *search) takeChunksLocked() step {
	m := &s.mapping
	if m.hole == nil {
		s.err = fmt.Errorf("%w: %d bytes of addresses are taken or in pieces too short; see Options.Addresses", vmm.ErrOutOfMemory, s.res.Size())
		return step{}
	}
	m.have = s.takeSpareLocked(m.chunks)
	create := m.chunks - len(m.have)
	for _, e := range m.runs {
		create -= int(e.size / s.chunk) //nolint:gosec // not above the slots
	}
	for _, e := range s.takeIdleLocked(create) {
		m.runs = append(m.runs, e)
		create -= int(e.size / s.chunk) //nolint:gosec // not above the slots
	}
	if m.err = s.chargeLocked(create); m.err != nil {
		return s.settleLocked()
	}
	return s.moveLocked()
}

// moveLocked has the chunks moved. A search counts as moving unless it waits for memory or for work.
func (s *search) moveLocked() step {
	s.mapping.moving = !s.mapping.wait
	if s.mapping.moving {
		s.moving++
	}
	return step{unlocked: (*search).move, locked: (*search).settleLocked}
}

// move unmaps chunks, creates those that are missing, and maps all of them at the site.
func (s *search) move() {
	m := &s.mapping
	if m.wait {
		if m.err = s.await(); m.err != nil {
			return
		}
	}
	m.have, m.err = s.unmap(m.have, m.runs)
	if more := m.chunks - len(m.have) - m.charged; more > 0 && errors.Is(m.err, vmm.ErrBusy) {
		m.err = s.charge(more) // a Hold keeps some of them mapped: new ones take their place
	}
	if m.err == nil && m.hole != nil {
		if m.err = s.create(); m.err == nil {
			m.err = s.res.Map(m.hole.off, m.have...)
		}
	}
}

// await waits for the work of st, which may use the chunks. They are idle then.
func (s *search) await() error {
	f, err := fences.Fence(s.st.s)
	if err == nil {
		err = fences.SyncFence(s.st.s, f)
		f.Free()
	}
	if err != nil {
		return fmt.Errorf("%w: wait for stream %#x: %w", vmm.ErrOutOfMemory, inside.VMM.StreamNumber(s.st.s), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.mapping.runs {
		e.by = nil
	}
	s.mapping.moving = true
	s.moving++
	return nil
}

// settleLocked puts into the lists what a mapping has worked on. If it has failed no memory is mapped
// at the site.
func (s *search) settleLocked() step {
	m := &s.mapping
	s.chunks.Add(int64(m.created - m.charged)) // less what was not created after all
	if m.moving {
		s.movedLocked()
		s.chunksPeak = max(s.chunksPeak, s.chunks.Load())
		s.stats.Created += uint64(m.created) * s.chunk //nolint:gosec // not negative
	}
	unmapped := s.putRunsLocked(m.runs)
	if m.hole != nil {
		s.stats.Remapped += unmapped
	}
	if m.hole != nil && m.err == nil {
		return s.foundLocked(s.mappedLocked(unmapped))
	}
	s.spare = append(s.spare, m.have...)
	if m.hole != nil {
		s.undoSiteLocked(m.site, len(m.have) == m.chunks && !errors.Is(m.err, vmm.ErrOutOfMemory) && !errors.Is(m.err, vmm.ErrClosed))
	} else if len(m.have) > 0 {
		return s.again() // with a longer hole
	}
	// A look at all memory takes chunks that are held, or that the device refuses, as not found.
	notFound := errors.Is(m.err, vmm.ErrOutOfMemory) || errors.Is(m.err, vmm.ErrBusy) || errors.Is(m.err, errMustCreate)
	if !m.looked || !notFound {
		s.err = m.err
	}
	return step{}
}

// mappedLocked enters the chunks that are mapped now, and returns as much memory as was looked for. The
// rest is idle.
func (s *search) mappedLocked(unmapped uint64) *extent {
	m := &s.mapping
	if unmapped > 0 {
		s.log.Add(history.Move, uint64(s.base)+m.hole.off, unmapped, 0, s.name)
	}
	for i, c := range m.have {
		s.slots[m.hole.off/s.chunk+uint64(i)].chunk = c //nolint:gosec // not negative
	}
	e := m.hole
	e.region.mapped += e.size
	if m.before != nil {
		e = m.before
		s.joinLocked(e)
	}
	e.kind = kindBusy
	if e.size == s.size {
		return e
	}
	f := s.cutFrontLocked(e, s.size)
	s.freeLocked(e, nil, 0)
	return f
}

// movedLocked ends what p.moving counts: what the call took is in the lists again, or another's.
func (p *Pool) movedLocked() {
	p.moving--
	p.moved.Broadcast()
}

// undoSiteLocked gives a site back. If the driver has refused to map there, it would refuse
// again: the addresses become bad, and are not used before TrimTo, or before there are no others.
func (p *Pool) undoSiteLocked(s site, refused bool) {
	if s.before != nil {
		p.freeLocked(s.before, s.before.by, s.before.stamp) // the stream may have been closed meanwhile
	}
	if !refused {
		p.addHoleLocked(s.hole)
		return
	}
	s.hole.kind = kindBad
	p.bad.Add(1)
}

// chargeLocked counts chunks that are about to be created, so that calls under way do not
// exceed the maximum together.
func (s *search) chargeLocked(create int) error {
	now := s.chunks.Load() + int64(create)
	switch {
	case create > 0 && !s.mapping.create:
		return errMustCreate
	case now > int64(s.most):
		return s.errMaximum()
	}
	s.chunks.Store(now)
	s.mapping.charged += create
	return nil
}

// charge is chargeLocked without Pool.mu.
func (s *search) charge(create int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chargeLocked(create)
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
		for bin := b.from(binOf(p.chunk / pageSize)); bin >= 0 && n > 0; bin = b.from(bin + 1) {
			var next *extent
			for e := b.heads[bin]; e != nil && n > 0; e = next {
				next = e.binNext
				if m := min(n, p.wholeChunks(e.off, e.end())); m > 0 {
					off := e.end()/p.chunk*p.chunk - uint64(m)*p.chunk                  //nolint:gosec // not negative
					out = append(out, p.takeSpanLocked(nil, e, off, uint64(m)*p.chunk)) //nolint:gosec // not negative
					n -= m
				}
			}
		}
	}
	return out
}

// wholeChunks is how many chunks lie within addresses.
func (p *Pool) wholeChunks(off, end uint64) int {
	first, last := (off+p.chunk-1)/p.chunk, end/p.chunk
	return int(max(first, last) - first) //nolint:gosec // not above the slots
}

// takeSpanLocked takes size bytes from off on out of free neighbours, of any lists, of which e is
// the first or lies before. What is taken is busy, and by st unless all of it is idle: st comes
// after the work that may use it.
func (p *Pool) takeSpanLocked(st *stream, e *extent, off, size uint64) (span *extent) {
	for e.end() <= off {
		e = e.next
	}
	if e.off < off {
		h := e.list
		h.add(p.cutFrontLocked(e, off-e.off))
	}
	pending := false
	for end := off + size; span == nil || span.end() < end; {
		if span != nil {
			e = span.next
		}
		pending = pending || e.list != &p.idle
		piece := p.takeLocked(e, min(e.size, end-e.off))
		piece.kind = kindBusy
		if span == nil {
			span = piece
		} else {
			p.joinLocked(span)
		}
	}
	span.by = nil
	if pending {
		span.by, span.stamp = st, st.point()
	}
	return span
}

// create creates the chunks that a mapping has not. While it waits for memory, for which other calls may
// have to release some, the search does not count as moving.
func (s *search) create() error {
	m := &s.mapping
	if m.chunks > 1 && len(m.have) < m.chunks { // of which releases cannot help
		if limit := s.dev.Stats().Limit; limit > 0 && uint64(m.chunks)*s.chunk > limit { //nolint:gosec // not negative
			return fmt.Errorf("%w: this process's limit is %d bytes", vmm.ErrOutOfMemory, limit)
		}
	}
	for len(m.have) < m.chunks {
		from := &memsample.Source{Kind: memsample.Pool, Name: s.name}
		c, err := inside.VMM.TryCreatePart(s.dev, s.chunk, s.prop, from)
		if errors.Is(err, vmm.ErrOutOfMemory) {
			s.mu.Lock()
			s.movedLocked()
			s.mu.Unlock()
			c, err = inside.VMM.CreatePart(s.dev, s.chunk, s.prop, from)
			s.mu.Lock()
			s.moving++
			s.mu.Unlock()
		}
		if err != nil {
			return err
		}
		m.have = append(m.have, c)
		m.created++
	}
	return nil
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
		p.mu.Lock()
		for i := e.off / p.chunk; i < e.end()/p.chunk; i++ {
			chunks = append(chunks, p.slots[i].chunk)
			p.slots[i].chunk = nil
		}
		p.mu.Unlock()
	}
	return chunks, failed
}

// putRunsLocked puts back runs that unmap was called for: as holes, or, where memory is still
// mapped, as idle memory. It returns how many bytes are holes.
func (p *Pool) putRunsLocked(runs []*extent) (unmapped uint64) {
	for _, e := range runs {
		if p.slots[e.off/p.chunk].chunk == nil {
			unmapped += e.size
			e.by = nil
			e.region.mapped -= e.size
			p.addHoleLocked(e)
			continue
		}
		p.freeLocked(e, e.by, e.stamp)
	}
	return unmapped
}
