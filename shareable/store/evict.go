package store

import (
	"iter"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/ledger"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// makeRoomLocked has it that so much more can be reserved for an object: with Options.Evict it
// deletes sealed objects that no reader has. Those of the same user go first, the least recently
// used before others, and then those of users who have more than their share. If all together are
// not enough it deletes none, and returns vmm.ErrLimit. Requires mu; the caller calls closeEvicted
// without it.
func (s *Server) makeRoomLocked(of *entry, a ledger.Amounts) error {
	invariants.Held(&s.mu)
	p := s.ledger.Plan(of.uid, a)
	err := p.Err()
	var chosen []*entry
	for e := range s.evictableLocked(of) {
		if err == nil {
			break
		}
		if e != of && p.Helps(e.uid, e.has) {
			chosen = append(chosen, e)
			p.Less(e.uid, e.has)
			err = p.Err()
		}
	}
	if err == nil {
		s.evictAllLocked(chosen)
	}
	return err
}

// evictFor deletes objects of size bytes together where the device has no memory, or all that it may, for an
// object, or, if that is nil, for another process. It reports whether there was one.
func (s *Server) evictFor(of *entry, size uint64) bool {
	s.waitReaders()
	defer s.closeEvicted()
	s.mu.Lock()
	defer s.mu.Unlock()
	share := min(s.ledger.Share(ledger.Bytes), s.dev.Info().Memory/uint64(max(len(s.opts.UIDs), 1)))
	left := s.ledger.Users()
	var chosen []*entry
	var bytes uint64
	for e := range s.evictableLocked(of) {
		if bytes >= size {
			break
		}
		if of.comesFirst(e) || left[e.uid][ledger.Bytes] > share {
			chosen = append(chosen, e)
			left[e.uid] = left[e.uid].Minus(e.has)
			bytes += e.has[ledger.Bytes]
		}
	}
	s.evictAllLocked(chosen)
	return len(chosen) > 0
}

// waitReaders waits until readers of a server before this one have come back, without whom what
// they have looks unused. It reports whether it has waited.
func (s *Server) waitReaders() bool {
	s.mu.Lock()
	wait := time.Until(s.evictFrom)
	s.mu.Unlock()
	if wait <= 0 || !s.opts.Evict {
		return false
	}
	select {
	case <-time.After(wait):
	case <-s.stop:
	}
	return true
}

// comesFirst reports whether another object is evicted for this one before others: as one of the same user; for nil, any.
func (e *entry) comesFirst(other *entry) bool { return e == nil || e.uid == other.uid }

// evictableLocked are the objects that can be evicted for one, in their order: those of its user, then
// others. Requires mu.
func (s *Server) evictableLocked(of *entry) iter.Seq[*entry] {
	invariants.Held(&s.mu)
	return func(yield func(*entry) bool) {
		if time.Now().Before(s.evictFrom) {
			return
		}
		for _, own := range []bool{true, false} {
			for x := s.unused.Front(); s.opts.Evict && x != nil; x = x.Next() {
				e, ok := x.Value.(*entry)
				if !ok || of.comesFirst(e) != own {
					continue
				}
				if _, _, _, readers := e.obj.State(); readers > 0 { // one that has just come
					continue
				}
				if !yield(e) {
					return
				}
			}
		}
	}
}

// evictAllLocked deletes objects. Requires mu.
func (s *Server) evictAllLocked(all []*entry) {
	invariants.Held(&s.mu)
	for _, e := range all {
		s.emitLocked(wire.EventEvicted, e, e.nameLocked(), 0)
		e.was = e.nameLocked()
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
		s.opts.Logger.Info("evicted", "object", e.id, "name", e.was, "uid", e.uid)
		_ = s.forget(e, requestID{}) // without a keeper the process ends
		_ = e.obj.Close()
		s.freeMemory(e, 0)
	}
}
