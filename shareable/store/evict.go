package store

import (
	"fmt"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

var errNothingToEvict = fmt.Errorf("%w: nothing to evict", vmm.ErrLimit)

// evictLocked deletes sealed objects that no reader has, the least recently used first, until
// enough returns true. Requires mu; the caller calls closeEvicted without it.
func (s *Server) evictLocked(enough func() bool) error {
	invariants.Held(&s.mu)
	for !enough() {
		if !s.evictOneLocked() {
			return errNothingToEvict
		}
	}
	return nil
}

// evictFor deletes objects of size bytes together, or all that it can, and reports whether
// there was one.
func (s *Server) evictFor(size uint64) bool {
	defer s.closeEvicted()
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.bytes
	some := false
	for before-s.bytes < size && s.evictOneLocked() {
		some = true
	}
	return some
}

// evictOneLocked deletes one object. Requires mu.
func (s *Server) evictOneLocked() bool {
	invariants.Held(&s.mu)
	if !s.opts.Evict {
		return false
	}
	for x := s.unused.Front(); x != nil; x = x.Next() {
		oldest, ok := x.Value.(*entry)
		if !ok {
			continue
		}
		if _, _, _, readers := oldest.obj.State(); readers > 0 { // one that has just come
			continue
		}
		s.emitLocked(wire.EventEvicted, oldest, oldest.nameLocked(), 0)
		s.forgetLocked(oldest)
		s.counts.evicted.Add(1)
		s.evicted = append(s.evicted, oldest)
		return true
	}
	return false
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
		s.freeMemory(e, 0)
	}
}
