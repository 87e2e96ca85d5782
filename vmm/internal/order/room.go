package order

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// CUDA queues about a thousand pieces of work for a stream, of copies from pinned memory fewer: on
// an H100 the 75th blocked, each with an event behind it. Such a call blocks every other call of
// the context, until the stream moves (docs/contributing/driver-notes.md). So what this package's users queue
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

// Room counts one more copy of the library's own, if the stream has room for it. If not, the caller
// calls wait, with none of the stream's locks, and tries again. The stream is not being captured,
// and the caller keeps it so.
func (d *Device) Room(s *Stream) (wait func() error, err error) {
	s.roomMu.Lock()
	defer s.roomMu.Unlock()
	n := s.queued.Load() + 1
	if n-s.reached > markEvery {
		if len(s.marks) == 0 || n-s.marks[len(s.marks)-1].n > markEvery {
			f, err := d.Fence(s)
			if s.Wrapped && errors.Is(err, driver.ErrInvalid) {
				return nil, nil // a stream of another context: each copy is waited for
			}
			if err != nil {
				return nil, err
			}
			s.marks = append(s.marks, mark{n - 1, f})
		}
		for len(s.marks) > 0 {
			m := s.marks[0]
			if done, err := m.f.Done(); err != nil {
				return nil, err
			} else if !done {
				break
			}
			s.marks = s.marks[1:]
			m.f.Free()
			s.reached = max(s.reached, m.n)
		}
		if n-s.reached > roomOf && len(s.marks) > 0 {
			m := s.marks[0]
			s.marks = s.marks[1:] // the caller that waits owns it
			return func() error { return s.await(m) }, nil
		}
	}
	s.queued.Add(1)
	return nil, nil
}

// await waits for a mark.
func (s *Stream) await(m mark) error {
	if err := m.f.SyncAndFree(); err != nil {
		return err
	}
	s.roomMu.Lock()
	defer s.roomMu.Unlock()
	s.reached = max(s.reached, m.n)
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
