package vmm

import "sync/atomic"

// LockSpans keeps spans from being unmapped, and access to them from being taken away,
// for the time of one call of the program's own that queues work on the stream; a kernel
// that Function.Launch queues needs none. What takes the memory away waits for unlock, and
// then for the work as always. All of a span must be mapped, else ErrBounds, and
// accessible to the stream's device, else ErrPermission; a span in which UsedBy has named other
// streams is ErrInvalid; one whose access is being changed or in doubt is ErrBusy, and of a range
// that sleeps ErrAsleep. Memory
// that no reservation knows is left to the driver. If the stream is being captured, the
// graph remembers the spans. The stream is held, too, as Hold does. unlock must be called once,
// soon: a Clip, a Sleep, an Unmap or a Close of any part of the reservation, or a Close of the stream,
// may be waiting for it; and of a range with RangeOptions.Zero a SetLen downwards, and what comes
// after it or after such a Clip: SetLen, Append, AppendOn and Grow, which fill first what was given up.
// So the goroutine that has locked spans of such a range must not grow it or move its length before
// unlock, if others may shrink it meanwhile; nor call what needs memory, if a function of OnPressure
// takes away memory of the spans.
func (s *Stream) LockSpans(spans ...Span) (unlock func(), err error) {
	l := &spansLock{s: s}
	l.locked = l.few[:0]
	// The stream is kept open until all are locked: the spans are checked for it.
	err = s.with(func(o *openDevice) (err error) {
		for _, x := range spans {
			if x.Size == 0 {
				continue
			}
			l.checked.Span = x
			one, err := s.lockMemory(&l.checked)
			if err != nil {
				unlockAll(l.locked)
				return err
			}
			l.locked = append(l.locked, one)
		}
		if err = s.remember(o, nil, spans...); err != nil {
			unlockAll(l.locked)
			return err
		}
		if _, err = s.hold(o); err != nil {
			unlockAll(l.locked)
		}
		return err
	})
	if err != nil {
		return nil, s.fail("lock spans", 0, 0, err)
	}
	return l.unlock, nil
}

// spansLock is what LockSpans has locked, in one allocation for a few spans.
type spansLock struct {
	s       *Stream
	locked  []lockedSpan
	few     [4]lockedSpan
	checked LaunchMemory
	done    atomic.Bool
}

func (l *spansLock) unlock() {
	if !l.done.Swap(true) {
		unlockAll(l.locked)
		l.s.unhold()
	}
}
