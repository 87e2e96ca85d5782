package vmm

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
)

// noteAppendLocked notes an AppendOn on s. It needs r.mu.
func (r *Reservation) noteAppendLocked(s *Stream) {
	invariants.Held(&r.mu)
	if first := r.users.Append(s); first && !s.addWaitedForBy(r) {
		r.users.Ended(s, true) // closed meanwhile, its work waited for
	}
}

// appendsDone notes that the AppendOns on s up to the given one have run.
func (r *Reservation) appendsDone(s *Stream, upTo uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users.Ran(s, upTo) {
		s.removeWaitedForBy(r)
	}
}

// appendTail is the end of a stream with AppendOns, of which the last is numbered upTo,
// that may not have run yet.
type appendTail struct {
	s    *Stream
	upTo uint64
	f    order.Fence
	err  error
}

// waitAppends waits until the AppendOns up to the one numbered seq have run.
func (r *Reservation) waitAppends(seq uint64) error {
	lock.Waits()
	var tails []appendTail
	r.mu.Lock()
	for s, last := range r.users.PendingUpTo(seq) {
		tails = append(tails, appendTail{s: s, upTo: last})
	}
	r.mu.Unlock()
	// All events are recorded before the first wait, so that appends which come later are not
	// waited for.
	for i := range tails {
		t := &tails[i]
		if t.f, t.err = t.s.recordEnd(); errors.Is(t.err, ErrCapturing) {
			for _, recorded := range tails[:i] {
				recorded.f.Free()
			}
			return fmt.Errorf("wait for a stream of %v: %w", t.s.dev, t.err)
		}
	}
	var failed error
	for _, t := range tails {
		err := t.s.syncFence(t.f, t.err)
		if err == nil {
			r.appendsDone(t.s, t.upTo)
		} else if failed == nil {
			failed = fmt.Errorf("wait for a stream of %v: %w", t.s.dev, err)
		}
	}
	return failed
}
