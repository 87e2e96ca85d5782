package order

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// CUDA queues about a thousand pieces of work for a stream, of copies from pinned memory fewer: on
// an H100 the 75th blocked, each with an event behind it. Such a call blocks every other call of
// the context, until the stream moves (docs/driver-notes.md). So what this package's users queue
// by themselves, copies through pinned blocks, waits before that.
const (
	// roomOf is how many pieces of work may be queued on a stream for such a copy to be queued
	// behind them.
	roomOf = 32
	// markEvery is after how many of them an event tells how far the stream is.
	markEvery = roomOf / 4
)

// mark is an event after the first n pieces of work of a stream.
type mark struct {
	n uint64
	f Fence
}

// Queued counts a piece of work that a call queues on the stream.
func (s *Stream) Queued() { s.queued.Add(1) }

// Room waits until the stream has room for one more copy of the library's own, for events and
// outside of what blocks the context, and counts it. The stream is not being captured, and the
// caller keeps it so.
func (d *Device) Room(s *Stream) error {
	s.roomMu.Lock()
	defer s.roomMu.Unlock()
	n := s.queued.Add(1) // with the lock: reached is never beyond it
	if n-s.reached <= markEvery {
		return nil
	}
	if len(s.marks) == 0 || n-s.marks[len(s.marks)-1].n > markEvery {
		f, err := d.Fence(s)
		if s.Wrapped && errors.Is(err, driver.ErrInvalid) {
			return nil // a stream of another context: each copy is waited for
		}
		if err != nil {
			return err
		}
		s.marks = append(s.marks, mark{n - 1, f})
	}
	for len(s.marks) > 0 {
		m := s.marks[0]
		if n-s.reached > roomOf {
			if err := m.f.Sync(); err != nil {
				return err
			}
		} else if done, err := m.f.Done(); err != nil || !done {
			return err
		}
		m.f.Free()
		s.reached, s.marks = m.n, s.marks[1:]
	}
	return nil
}

// freeMarks gives up the events of Room. The stream has no work any more.
func (s *Stream) freeMarks() {
	s.roomMu.Lock()
	defer s.roomMu.Unlock()
	for _, m := range s.marks {
		m.f.Free()
	}
	s.marks = nil
}
