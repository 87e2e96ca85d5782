package vmm

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
)

// appendSpan is the AppendOns of one stream that may not have run yet, by number.
type appendSpan struct{ first, last uint64 }

// noteAppendLocked notes an AppendOn on s. It needs r.mu.
func (r *Reservation) noteAppendLocked(s *Stream) {
	invariants.Held(&r.mu)
	r.appendSeq++
	span, ok := r.pendingAppends[s]
	if !ok {
		if !s.addWaitedForBy(r) {
			return // closed meanwhile, its work waited for
		}
		span.first = r.appendSeq
		if r.pendingAppends == nil {
			r.pendingAppends = map[*Stream]appendSpan{}
		}
	}
	span.last = r.appendSeq
	r.pendingAppends[s] = span
	r.pendingStreams.Store(int32(len(r.pendingAppends)))
}

// forgetAppendsLocked is for a stream whose AppendOns have run. It needs r.mu.
func (r *Reservation) forgetAppendsLocked(s *Stream) {
	invariants.Held(&r.mu)
	delete(r.pendingAppends, s)
	r.pendingStreams.Store(int32(len(r.pendingAppends)))
}

// appendsDone notes that the AppendOns on s up to the given one have run.
func (r *Reservation) appendsDone(s *Stream, upTo uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	span, ok := r.pendingAppends[s]
	switch {
	case !ok:
	case span.last > upTo:
		r.pendingAppends[s] = appendSpan{max(span.first, upTo+1), span.last}
	default:
		r.forgetAppendsLocked(s)
		if _, named := r.namedStreams[s]; !named {
			s.removeWaitedForBy(r)
		}
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
	for s, span := range r.pendingAppends {
		if span.first <= seq {
			tails = append(tails, appendTail{s: s, upTo: span.last})
		}
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
