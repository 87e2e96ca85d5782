package store

import (
	"github.com/cuvmm/cuvmm/shareable/internal/ledger"
	"github.com/cuvmm/cuvmm/vmm"
)

// heldChunk is memory that no object has any more, and that is not free: a client was sent its
// descriptor, and has not closed that. It counts for who made the object until the driver says that
// it is free. Where the driver cannot tell, as CUDA's, it does not.
type heldChunk struct {
	chunk *vmm.Chunk // closed
	user  uint32
	soon  bool // no client had it: it is free once the keeper knows that the object has gone
}

const (
	heldAsked = 64 // are asked for at a time, where a limit is reached
	heldEach  = 2  // are asked for whenever there is one more
)

// heldAmount is what a chunk that is held counts: its memory, and the driver's descriptor.
func heldAmount(c *vmm.Chunk) ledger.Amounts {
	return ledger.Amounts{ledger.Bytes: c.Size(), ledger.Descriptors: 1}
}

// closeChunk closes a chunk, and counts it as held unless it is free.
func (s *Server) closeChunk(user uint32, c *vmm.Chunk, soon bool) {
	if _, err := c.Freed(); err != nil { // the driver cannot tell
		_ = c.Close()
		return
	}
	s.mu.Lock()
	s.closing += c.Size() // before its Close: at no moment does it look free
	s.countLocked()
	s.mu.Unlock()
	_ = c.Close()
	free, err := c.Freed()
	held := !free && err == nil
	s.mu.Lock()
	if s.closing -= c.Size(); held {
		s.held = append(s.held, heldChunk{c, user, soon})
		if soon {
			s.soon++
			s.freed = true
		}
		s.heldBytes += c.Size()
		s.ledger.Add(user, heldAmount(c))
	}
	s.countLocked()
	s.mu.Unlock()
	if held {
		s.askHeld(heldEach, func(heldChunk) bool { return true })
	}
}

// freeHeld asks the driver about chunks that are held where a user's request exceeds a limit, the
// user's own first, and reports whether one is free.
func (s *Server) freeHeld(user uint32) (found bool) {
	own := func(h heldChunk) bool { return h.user == user }
	return s.askHeld(heldAsked, own) || s.askHeld(heldAsked, func(h heldChunk) bool { return !own(h) })
}

// askHeld asks the driver about chunks that are held, and reports whether one is free.
func (s *Server) askHeld(most int, may func(heldChunk) bool) (found bool) {
	for _, h := range s.takeHeld(most, may) {
		free, err := h.chunk.Freed()
		s.mu.Lock()
		if free || err != nil {
			found = true
			s.heldBytes -= h.chunk.Size()
			if h.soon && s.soon > 0 {
				s.soon--
			}
			s.countLocked()
			s.ledger.Return(h.user, heldAmount(h.chunk))
		} else {
			s.held = append(s.held, h) // the others come first the next time
		}
		s.mu.Unlock()
	}
	return found
}

// takeHeld takes some of the chunks that are held, the first ones.
func (s *Server) takeHeld(most int, may func(heldChunk) bool) (taken []heldChunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []heldChunk
	i := 0
	for ; i < len(s.held) && len(taken) < most; i++ {
		if h := s.held[i]; may(h) {
			taken = append(taken, h)
		} else {
			left = append(left, h)
		}
	}
	s.held = append(s.held[i:], left...)
	return taken
}
