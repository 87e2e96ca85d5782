package vmm

import "sync/atomic"

// LockSpans keeps spans mapped and accessible while the program queues work of its own on the stream.
// Call LockSpans before queueing, and unlock right after it, once. A kernel that Function.Launch queues
// needs no lock. The errors are those of Function.Launch for its memory. Memory in no reservation is left
// to the driver. If the stream is being captured, the graph remembers the spans. The stream is held, too,
// as Hold does.
//
// These calls wait for unlock, and then for the work as always: Clip, Unmap, Close, Sleep, a change of
// access, a Trim that repairs access (see Grant), Close of the stream, and a growth that meets a Clip of
// a range with RangeOptions.Zero. Before unlock the goroutine must make none of these calls, nor one that
// needs memory if a function of OnPressure unmaps memory of the spans.
func (s *Stream) LockSpans(spans ...Span) (unlock func(), err error) {
	l := &spansLock{s: s}
	l.locked = l.few[:0]
	var memory LaunchMemory
	// The stream is kept open until all are locked: the spans are checked for it.
	err = s.with(func(o *openDevice) (err error) {
		for _, x := range spans {
			if x.Size == 0 {
				continue
			}
			memory.Span = x
			if err := s.lockMemory(&memory); err != nil {
				return err
			}
			one := memory.locked
			if one.r != nil {
				l.locked = append(l.locked, one.r.lockSpan(x))
			}
			one.unlock() // it counted as a copy up to here
		}
		if err = s.remember(o, nil, spans...); err == nil {
			s.hold()
		}
		return err
	})
	if err != nil {
		l.unlockSpans()
		return nil, s.wrap("lock spans", 0, 0, err)
	}
	return l.unlock, nil
}

// spansLock is what LockSpans has locked, in one allocation for a few spans.
type spansLock struct {
	s      *Stream
	locked []heldSpan
	few    [4]heldSpan
	done   atomic.Bool
}

func (l *spansLock) unlock() {
	if !l.done.Swap(true) {
		l.unlockSpans()
		l.s.unhold()
	}
}

func (l *spansLock) unlockSpans() {
	for _, x := range l.locked {
		x.unlock()
	}
}

// heldSpan is a span that LockSpans has locked, and its number in the reservation.
type heldSpan struct {
	r *Reservation
	n uint64
}

// lockSpan notes a span, which is checked: what takes it away waits for unlock.
func (r *Reservation) lockSpan(x Span) heldSpan {
	off := uint64(x.Addr - r.ptr)
	r.mu.Lock()
	defer r.mu.Unlock()
	return heldSpan{r, r.users.Spans.Lock(off, off+x.Size)}
}

func (x heldSpan) unlock() {
	x.r.mu.Lock()
	defer x.r.mu.Unlock()
	x.r.users.Spans.Unlock(x.n)
}

// waitForCopies waits for the library's own copies that are under way, and until the spans are
// unlocked that overlap size bytes from off on. The caller has marked what it takes away.
func (r *Reservation) waitForCopies(off, size uint64) {
	r.copies.Wait()
	r.mu.Lock()
	spans := &r.users.Spans
	for last := spans.Last(); spans.Overlap(off, off+size, last); r.mu.Lock() {
		unlocked := spans.Unlocked()
		r.mu.Unlock()
		<-unlocked
	}
	r.mu.Unlock()
}
