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

// mapping is how chunks come to a site: spare and idle ones always.
type mapping struct {
	runs   []*extent // taken for it
	after  *stream   // whose work may use those that are by it, and is waited for; nil: none are
	create bool      // new chunks may be created
}

// growLocked maps memory for w: chunks that are idle elsewhere, then, if m may create them, new
// ones, else it returns errMustCreate. It completes or changes nothing. It releases p.mu
// meanwhile.
func (p *Pool) growLocked(st *stream, w want, m mapping) (*extent, error) {
	s, ok := p.anySiteLocked(st, w.size, w.r)
	if !ok && p.bad > 0 {
		p.mu.Unlock()
		p.repair()
		p.mu.Lock()
		s, ok = p.anySiteLocked(st, w.size, w.r)
	}
	if !ok {
		return nil, fmt.Errorf("%w: %d bytes of addresses are taken or in pieces too short; see Options.Addresses", vmm.ErrOutOfMemory, p.res.Size())
	}
	return p.mapForLocked(s, w.size, m)
}

// mapForLocked maps memory at a site, and returns its first size bytes. The rest is idle.
func (p *Pool) mapForLocked(s site, size uint64, m mapping) (*extent, error) {
	if err := p.mapLocked(s, m); err != nil {
		return nil, err
	}
	e := s.hole
	if s.before != nil {
		e = s.before
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
	whole := (size + p.chunk - 1) / p.chunk
	s = site{hole: r.holes.find(whole*p.chunk, math.MaxUint64), chunks: int(whole)} //nolint:gosec // not above the slots
	for _, h := range []*freeList{&st.free, &p.idle} {
		if e := h.bins[r.index].beforeHole(size, p.chunk); e != nil {
			k := int((size - e.size + p.chunk - 1) / p.chunk) //nolint:gosec // not above the slots
			if s.before == nil && k <= s.chunks || s.hole == nil || k < s.chunks {
				s = site{before: e, hole: e.next, chunks: k}
			}
		}
	}
	if s.hole == nil {
		return s, false
	}
	if s.before != nil {
		s.before = p.takeLocked(s.before, s.before.size)
		s.before.kind = kindBusy
	}
	s.hole = p.takeHoleLocked(s.hole, uint64(s.chunks)*p.chunk) //nolint:gosec // not negative
	return s, true
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

// mapLocked maps memory at a site: spare chunks, then idle ones, which move, then what m says.
// If that fails no memory is mapped there, and the site is given back. It releases p.mu meanwhile,
// and counts as moving as long as it does not wait for memory or for work.
func (p *Pool) mapLocked(s site, m mapping) error {
	have := p.takeSpareLocked(s.chunks)
	create, moved := s.chunks-len(have), m.runs
	for _, e := range moved {
		create -= int(e.size / p.chunk) //nolint:gosec // not above the slots
	}
	for _, e := range p.takeIdleLocked(create) {
		moved = append(moved, e)
		create -= int(e.size / p.chunk) //nolint:gosec // not above the slots
	}
	err, refused := errMustCreate, false
	if create == 0 || m.create {
		err = p.chargeLocked(create)
	}
	if err == nil && m.after != nil {
		err = p.awaitLocked(m.after, moved)
		if err != nil {
			p.chunks.Add(int64(-create))
		}
	}
	if err == nil {
		p.moving++
		p.mu.Unlock()
		have, err = p.unmap(have, moved)
		if more := s.chunks - len(have) - create; more > 0 && errors.Is(err, vmm.ErrBusy) {
			// A Hold keeps some of them mapped: new ones take their place.
			create, err = p.chargeMore(create, more, m.create)
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
		p.movedLocked()
		p.chunks.Add(int64(created - create)) // less what was not created after all
		p.chunksPeak = max(p.chunksPeak, p.chunks.Load())
		p.stats.Created += uint64(created) * p.chunk //nolint:gosec // not negative
	}
	unmapped := p.putRunsLocked(moved)
	p.stats.Remapped += unmapped
	if err == nil {
		if unmapped > 0 {
			p.log.Add(history.Move, uint64(p.base)+s.hole.off, unmapped, 0, p.name)
		}
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

// awaitLocked waits for the work of st, which may use the runs that are by it. They are idle then.
// It releases p.mu meanwhile.
func (p *Pool) awaitLocked(st *stream, runs []*extent) error {
	p.mu.Unlock()
	f, err := fences.Fence(st.s)
	if err == nil {
		err = fences.SyncFence(st.s, f)
		f.Free()
	}
	p.mu.Lock()
	for _, e := range runs {
		if err == nil && e.by == st {
			e.by = nil
		}
	}
	if err != nil {
		return fmt.Errorf("%w: wait for stream %#x: %w", vmm.ErrOutOfMemory, inside.VMM.StreamNumber(st.s), err)
	}
	return nil
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
	p.bad++
}

// chargeLocked counts chunks that are about to be created, so that calls under way do not
// exceed the maximum together.
func (p *Pool) chargeLocked(create int) error {
	now := p.chunks.Load() + int64(create)
	if now > int64(p.most) {
		return p.errMaximum()
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

// create adds new chunks to have until there are n, and counts them. While it waits for memory,
// for which other calls may have to release some, the call does not count as moving.
func (p *Pool) create(have []*vmm.Chunk, n int) (all []*vmm.Chunk, created int, err error) {
	if n > 1 && len(have) < n { // of which releases cannot help
		if limit := p.dev.Stats().Limit; limit > 0 && uint64(n)*p.chunk > limit { //nolint:gosec // not negative
			return have, 0, fmt.Errorf("%w: this process's limit is %d bytes", vmm.ErrOutOfMemory, limit)
		}
	}
	for err == nil && len(have) < n {
		from := &memsample.Source{Kind: memsample.Pool, Name: p.name}
		c, again := inside.VMM.TryCreatePart(p.dev, p.chunk, p.prop, from)
		if errors.Is(again, vmm.ErrOutOfMemory) {
			p.mu.Lock()
			p.movedLocked()
			p.mu.Unlock()
			c, again = inside.VMM.CreatePart(p.dev, p.chunk, p.prop, from)
			p.mu.Lock()
			p.moving++
			p.mu.Unlock()
		}
		if err = again; err == nil {
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
