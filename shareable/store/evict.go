package store

import (
	"fmt"
	"math"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

var errNothingToEvict = fmt.Errorf("%w: nothing to evict", vmm.ErrLimit)

// evictLocked deletes sealed objects that no reader has, the least recently used first, until
// those that are deleted are enough. If all together are not, it deletes none. Only objects
// for which may returns true go. Requires mu; the caller calls closeEvicted without it.
func (s *Server) evictLocked(may func(*entry) bool, enough func(objects int, bytes uint64) bool) error {
	chosen, ok := s.chooseLocked(may, enough)
	if !ok {
		return errNothingToEvict
	}
	s.evictAllLocked(chosen)
	return nil
}

func anyEntry(*entry) bool { return true }

// evictFor deletes objects of size bytes together, or all that it can, and reports whether
// there was one.
func (s *Server) evictFor(size uint64) bool {
	defer s.closeEvicted()
	s.mu.Lock()
	defer s.mu.Unlock()
	chosen, _ := s.chooseLocked(anyEntry, func(_ int, bytes uint64) bool { return bytes >= size })
	s.evictAllLocked(chosen)
	return len(chosen) > 0
}

// chooseLocked returns what evictLocked deletes, and whether it is enough. Requires mu.
func (s *Server) chooseLocked(may func(*entry) bool, enough func(objects int, bytes uint64) bool) (chosen []*entry, ok bool) {
	invariants.Held(&s.mu)
	var bytes uint64
	for x := s.unused.Front(); s.opts.Evict && x != nil && !enough(len(chosen), bytes); x = x.Next() {
		e, ok := x.Value.(*entry)
		if !ok || !may(e) {
			continue
		}
		if _, _, _, readers := e.obj.State(); readers > 0 { // one that has just come
			continue
		}
		chosen = append(chosen, e)
		bytes += e.bytes
	}
	return chosen, enough(len(chosen), bytes)
}

// evictAllLocked deletes objects. Requires mu.
func (s *Server) evictAllLocked(all []*entry) {
	invariants.Held(&s.mu)
	for _, e := range all {
		s.emitLocked(wire.EventEvicted, e, e.nameLocked(), 0)
		s.forgetLocked(e)
		s.counts.evicted.Add(1)
		s.evicted = append(s.evicted, e)
	}
}

// usedLocked records that an object is used now, and returns how many readers it has.
// Whatever decides on its place in unused calls it. Requires mu.
func (s *Server) usedLocked(e *entry) (readers int) {
	invariants.Held(&s.mu)
	_, _, _, readers = e.obj.State()
	switch evictable := e.sealed && !e.deleted && readers == 0; {
	case evictable && e.unused == nil:
		e.unused = s.unused.PushBack(e)
	case evictable:
		s.unused.MoveToBack(e.unused)
	case e.unused != nil:
		s.unused.Remove(e.unused)
		e.unused = nil
	}
	return readers
}

// closeEvicted frees the memory of what was evicted, without a lock: that can take long. A
// reader that has attached since keeps what it gets.
func (s *Server) closeEvicted() {
	s.mu.Lock()
	all := s.evicted
	s.evicted = nil
	s.mu.Unlock()
	for _, e := range all {
		_ = e.obj.Close()
		s.freeMemory(e, math.MaxUint64)
	}
}
