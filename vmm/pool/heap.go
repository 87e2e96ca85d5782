package pool

import "math"

// newExtentLocked returns an extent that is in no list. Extents are used again, so that a
// pool at work allocates none.
func (p *Pool) newExtentLocked() *extent {
	e := p.unused
	if e == nil {
		e = &extent{}
		e.owner = owner{pool: p, ext: e}
		return e
	}
	p.unused = e.next
	e.next = nil
	return e
}

// dropLocked keeps an extent, which no neighbour links to any more, for newExtentLocked.
func (p *Pool) dropLocked(e *extent) {
	e.prev, e.next, e.region, e.by = nil, p.unused, nil, nil
	p.unused = e
}

// cutFrontLocked cuts the first size bytes off an extent and returns them as another one, of
// the same kind and in no list. The rest stays in the lists in which it is.
func (p *Pool) cutFrontLocked(e *extent, size uint64) *extent {
	f := p.newExtentLocked()
	f.kind, f.region, f.off, f.size, f.stamp, f.by = e.kind, e.region, e.off, size, e.stamp, e.by
	f.prev, f.next = e.prev, e
	if e.prev != nil {
		e.prev.next = f
	} else {
		e.region.first = f
	}
	e.prev = f
	if e.list != nil {
		b := &e.list.bins[e.region.index]
		b.remove(e)
		e.off, e.size = e.off+size, e.size-size
		b.insert(e, binOf(e.size/pageSize))
		e.list.bytes[e.region.index] -= size
		return f
	}
	e.off, e.size = e.off+size, e.size-size
	return f
}

// takeLocked takes the first size bytes of a free extent out of its list.
func (p *Pool) takeLocked(e *extent, size uint64) *extent {
	by := e.list.st
	if e.size > size {
		e = p.cutFrontLocked(e, size)
	} else {
		e.list.remove(e)
	}
	e.by = by
	return e
}

// joinLocked makes one extent of e and the one behind it, neither of which is in a list.
func (p *Pool) joinLocked(e *extent) {
	x := e.next
	e.size += x.size
	e.stamp = max(e.stamp, x.stamp)
	e.next = x.next
	if x.next != nil {
		x.next.prev = e
	}
	p.dropLocked(x)
}

// addFreeLocked adds an extent without a list to h, joined with its neighbours there. While
// several streams use the pool, memory that a stream freed at different points is not joined:
// another stream would have to wait for the later point. Nor is memory joined whose work is
// known to have ended, since that can become idle by itself.
func (p *Pool) addFreeLocked(e *extent, h *freeList) {
	apart := h.st != nil && p.several.Load()
	var done uint64
	if h.st != nil {
		done = h.st.finished()
	}
	if x := e.next; x != nil && x.list == h && x.stamp >= done && (!apart || x.stamp == e.stamp) {
		h.remove(x)
		p.joinLocked(e)
	}
	if x := e.prev; x != nil && x.list == h && x.stamp >= done && (!apart || x.stamp == e.stamp) {
		h.remove(x)
		e = x
		p.joinLocked(e)
	}
	h.add(e)
}

// addHoleLocked makes an extent without a list a hole, joined with its neighbours.
func (p *Pool) addHoleLocked(e *extent) {
	e.kind, e.list, e.stamp = kindHole, nil, 0
	holes := &e.region.holes
	if x := e.next; x != nil && x.kind == kindHole {
		holes.remove(x)
		p.joinLocked(e)
	}
	if x := e.prev; x != nil && x.kind == kindHole {
		holes.remove(x)
		e = x
		p.joinLocked(e)
	}
	holes.insert(e, binOf(e.size/pageSize))
}

// regionOf is where blocks of size bytes lie.
func (p *Pool) regionOf(size uint64) *region {
	switch {
	case size <= max(p.chunk/32, smallMost):
		return &p.regions[0]
	case size <= 2*p.chunk:
		return &p.regions[1]
	}
	return &p.regions[2]
}

// findLocked looks for size bytes that st may have without a driver call: what was freed in
// st, then what is idle, then, if follow is set, what was freed in streams for which st waits.
func (p *Pool) findLocked(st *stream, size uint64, r *region, follow bool) *extent {
	if e := st.free.bins[r.index].find(size, math.MaxUint64); e != nil {
		return p.takeLocked(e, size)
	}
	p.updateIdleLocked()
	if e := p.idle.bins[r.index].find(size, math.MaxUint64); e != nil {
		return p.takeLocked(e, size)
	}
	if !follow && !p.hooks.noOrder {
		return nil
	}
	for _, t := range p.all {
		if t == st || t.free.newest == nil {
			continue
		}
		if e := t.free.bins[r.index].find(size, p.reach(st, t, follow)); e != nil {
			return p.takeLocked(e, size)
		}
	}
	return nil
}

// updateIdleLocked makes idle what was freed in streams whose work is known to have ended since.
func (p *Pool) updateIdleLocked() {
	for _, t := range p.all {
		if t.free.oldest == nil {
			continue
		}
		done := t.finished()
		for e := t.free.oldest; e != nil && e.stamp < done; e = t.free.oldest {
			t.free.remove(e)
			e.stamp = 0
			p.addFreeLocked(e, &p.idle)
		}
	}
}

// findJoinedLocked looks for neighbours that are long enough together: they were freed in st at
// different points, or are idle.
func (s *search) findJoinedLocked() step {
	mine := func(x *extent) bool {
		return x != nil && x.kind == kindFree && (x.list == &s.st.free || x.list == &s.idle)
	}
	for e := s.st.free.oldest; e != nil; e = e.newer {
		first := e
		if x := e.prev; mine(x) && x.list == &s.idle { // whose neighbour before is not idle
			first = x
		}
		if e.region != s.r || mine(first.prev) {
			continue // the run begins with another one
		}
		var sum uint64
		for x := first; mine(x) && sum < s.size; x = x.next {
			sum += x.size
		}
		if sum >= s.size {
			return s.foundLocked(s.takeSpanLocked(s.st, first, first.off, s.size))
		}
	}
	return step{}
}

// freeLocked frees an extent: into the list of st, whose work up to stamp may use it; as idle
// memory if st is nil, or closed.
func (p *Pool) freeLocked(e *extent, st *stream, stamp uint64) {
	e.by = nil
	if st == nil || !st.open() {
		e.stamp = 0
		p.addFreeLocked(e, &p.idle)
		return
	}
	e.stamp = stamp
	p.addFreeLocked(e, &st.free)
}
