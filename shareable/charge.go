package shareable

import (
	"fmt"
	"math"
	"slices"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm"
)

// What counts for a user against Options.MaxBytesPerUID:
//
//   - memory that is published, for each open connection over which it was sent;
//   - memory that was published, was sent to the user, and is not free. Readers give it
//     up when they are told, but can keep it, and no one hears of either. The driver is
//     asked when the limit is reached.
//
// The second is recorded only if there is a limit.

// takenMemory is memory that was published and may not be free.
type takenMemory struct {
	size  uint64
	users []uint32 // who were sent it
}

// errStillHeld is that a user has reached the limit with memory that may yet be freed.
var errStillHeld = fmt.Errorf("%w: memory that was taken back is not free", vmm.ErrLimit)

func (s *Server) limitsBytes() bool { return s.opts.MaxBytesPerUID < math.MaxUint64 }

// charge counts n more bytes that are sent to readers of a user.
func (s *Server) charge(uid uint32, n uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	used, taken := s.bytesByUID[uid], s.takenByUID[uid]
	left := s.opts.MaxBytesPerUID - used
	if n > left {
		return fmt.Errorf("%w: user %d has %d bytes of at most %d", vmm.ErrLimit, uid, used, s.opts.MaxBytesPerUID)
	}
	if taken > left-n {
		return fmt.Errorf("%w: user %d has %d bytes, and may have %d more, of at most %d", errStillHeld, uid, used, taken, s.opts.MaxBytesPerUID)
	}
	s.bytesByUID[uid] += n
	return nil
}

func (s *Server) refund(uid uint32, n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytesByUID[uid] -= n; s.bytesByUID[uid] == 0 {
		delete(s.bytesByUID, uid)
	}
}

// takeBack records chunks that are no longer published.
func (s *Server) takeBack(chunks []publishedChunk) {
	if !s.limitsBytes() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range chunks {
		if len(c.sentTo) == 0 || c.own != nil { // a store counts its memory itself
			continue
		}
		m := s.taken[c.seg]
		if m == nil {
			m = &takenMemory{size: c.Size}
			s.taken[c.seg] = m
		}
		for _, uid := range c.sentTo {
			if !slices.Contains(m.users, uid) {
				m.users = append(m.users, uid)
				s.takenByUID[uid] += m.size
			}
		}
	}
}

// republish forgets memory that is published again, and returns who were sent it.
func (s *Server) republish(seg vmm.Segment) (sentTo []uint32) {
	if !s.limitsBytes() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forgetTakenLocked(seg)
}

// forgetTakenLocked ends the record of memory. Requires mu.
func (s *Server) forgetTakenLocked(seg vmm.Segment) (users []uint32) {
	invariants.Held(&s.mu)
	m := s.taken[seg]
	if m == nil {
		return nil
	}
	delete(s.taken, seg)
	for _, uid := range m.users {
		if s.takenByUID[uid] -= m.size; s.takenByUID[uid] == 0 {
			delete(s.takenByUID, uid)
		}
	}
	return m.users
}

// forgetFreed asks the driver about some of the memory that counts for a user, and
// reports whether any of it is free. Where the driver cannot tell, all counts as free.
func (s *Server) forgetFreed(uid uint32) (found bool) {
	// So much is asked at a time: it takes the host's driver 3 us each. The order of a
	// map's elements is another one each time, so every one has its turn.
	const most = 64
	asked := make(map[vmm.Segment]*takenMemory, most)
	s.mu.Lock()
	for seg, m := range s.taken {
		if len(asked) == most {
			break
		}
		if slices.Contains(m.users, uid) {
			asked[seg] = m
		}
	}
	s.mu.Unlock()
	for seg, m := range asked {
		if free, err := seg.Freed(); err == nil && !free {
			continue
		}
		s.mu.Lock()
		if s.taken[seg] == m { // else it was published meanwhile
			s.forgetTakenLocked(seg)
			found = true
		}
		s.mu.Unlock()
	}
	return found
}
