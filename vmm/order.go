package vmm

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
)

// What is known, without asking the driver, of which work comes before which.
//
// Each event that this package records on a stream has a number there. The number is taken
// before the driver is asked to record. So the event covers all work that was queued before a
// smaller number was read. An event also keeps what its stream came after at the time. A stream
// that waits for the event takes both over. Once the event is known to be reached, all of that
// work has ended.

// order is what is known of a stream's work and of what comes before it.
type order struct {
	id uint64 // immutable; lists are sorted by it

	points   atomic.Uint64          // numbers that were taken
	finished atomic.Uint64          // see Stream.Finished
	after    atomic.Pointer[afters] // what later work comes after; replaced, never changed
	joined   atomic.Bool            // a capture, by a wait for an event of it
	context  atomic.Bool            // of a wrapped stream: it takes events of the device's context
}

var streamCount atomic.Uint64 // for their ids

// end notes that all work of the stream has ended, and that there will be no more.
func (o *order) end() {
	o.finished.Store(math.MaxUint64)
	o.after.Store(nil)
}

// ended says whether end was called.
func (o *order) ended() bool { return o.finished.Load() == math.MaxUint64 }

// finish raises finished to n.
func (o *order) finish(n uint64) {
	for {
		was := o.finished.Load()
		if was >= n || o.finished.CompareAndSwap(was, n) {
			return
		}
	}
}

// point is where an event stands: after the work that a stream had, and after what that came
// after. The zero point is none: of an event that was never recorded, or during a capture.
type point struct {
	of    *Stream
	n     uint64
	after *afters
}

// finish notes that the event there is reached.
func (p point) finish() {
	if p.of == nil {
		return
	}
	p.of.order.finish(p.n)
	for _, a := range p.after.list() {
		a.of.order.finish(a.n)
	}
}

// after is an event of a stream, by its number.
type after struct {
	of *Stream
	n  uint64
}

// afters is the last event of each stream that some work comes after, by the streams' ids.
// Immutable.
type afters []after

// list is the events, of a nil pointer none.
func (a *afters) list() afters {
	if a == nil {
		return nil
	}
	return *a
}

// number is the event of stream s, 0 if there is none.
func (a afters) number(s *Stream) uint64 {
	i, ok := slices.BinarySearchFunc(a, s.order.id, func(x after, id uint64) int { return cmp.Compare(x.of.order.id, id) })
	if !ok {
		return 0
	}
	return a[i].n
}

// Point is the number of the last event that this package has begun to record on the stream.
// Work that was queued before Point returned p is covered by every event with a number
// above p. Numbers only rise. Some stand for no event, but for a question whether the
// stream's work has ended.
//
// Point, After and Finished say which work is known to come before which. They cost no driver
// call and take no lock. What counts is what goes through this package: Record, Wait, Fence
// and WaitFence of a Stream, Record of an Event, and the calls that wait for those or ask
// about them. Events that other libraries record do not count, nor those made with
// EventInterprocess, which other processes may record, nor do waits that the program makes on
// Raw handles. Two Streams that wrap one handle are two.
//
// Events that are recorded while the stream is captured do not count, nor do waits made then. A
// capture that BeginCapture has not begun is noticed on streams of WrapStream, and on those
// that join it by waiting for an event of this package.
func (s *Stream) Point() uint64 {
	if s == nil {
		return 0
	}
	return s.order.points.Load()
}

// After is the highest number of an event of the other stream that all work queued on this one
// from now on comes after; 0 if there is none, or the other stream is closed. A wait for an
// event counts, and so do the waits of that event's stream before it was recorded. Of
// the stream itself it is Point. See Point for what is seen.
func (s *Stream) After(other *Stream) uint64 {
	switch {
	case s == nil || other == nil:
		return 0
	case s == other:
		return s.Point()
	}
	return s.order.after.Load().list().number(other)
}

// Finished is the number of an event of the stream, such that the work before it is known to
// have ended: all work that was queued before Point returned a smaller number. It is
// math.MaxUint64 once the stream is closed.
//
// It rises when Stream.Sync or Event.Sync or Fence.Sync succeeds, or Done of one of them
// returns true, also for what that work comes after, and when Device.Sync succeeds. For a
// stream of WrapStream, Device.Sync counts once an event was recorded on it: that shows that
// the stream is of the device's context. ErrDeviceLost raises nothing: the work of a lost
// device counts as ended when its streams are closed.
func (s *Stream) Finished() uint64 {
	if s == nil {
		return 0
	}
	return s.order.finished.Load()
}

// nextPoint is the end of the stream's work, for a call that is about to cover it: the caller
// asks the driver after it. The stream is not being captured.
func (s *Stream) nextPoint() point {
	return point{s, s.order.points.Add(1), s.order.after.Load()}
}

// pointOn is nextPoint for an event that is about to be recorded; none while the stream is
// being captured, since then the event does not tell what has run.
func (s *Stream) pointOn(o *openDevice) point {
	if s.mayBeCaptured() && s.captured(o) {
		return point{}
	}
	return s.nextPoint()
}

// recordFenceOn records an event after the work that the stream has now. The stream is not
// freed, and stays so.
func (s *Stream) recordFenceOn(o *openDevice) (Fence, error) {
	f, err := o.recordFence(s.queue, s.pointOn(o))
	if err == nil && f.on != nil && s.wrapped {
		s.order.context.Store(true) // a stream of another context would have refused it
	}
	return f, err
}

// waited notes that the stream waits for an event at p: later work comes after it.
func (s *Stream) waited(o *openDevice, p point) {
	// An event without a place may be of a capture, which the stream has joined then.
	if (p.of == nil || s.mayBeCaptured()) && s.captured(o) {
		s.order.joined.Store(true)
		return
	}
	if p.of == nil {
		return
	}
	for {
		was := s.order.after.Load()
		next := s.withAfter(was.list(), p)
		if next == nil || s.order.after.CompareAndSwap(was, next) {
			return
		}
	}
}

// withAfter is a list with what p comes after; nil if that tells nothing new.
func (s *Stream) withAfter(was afters, p point) *afters {
	own := after{p.of, p.n}
	news := func(a after) bool { return a.of != s && !a.of.order.ended() && was.number(a.of) < a.n }
	if !news(own) && !slices.ContainsFunc(p.after.list(), news) {
		return nil
	}
	all := s.merge(s.merge(was, p.after.list()), afters{own})
	return &all
}

// merge is the events of both lists, of each stream the last one, without s itself and streams
// that are closed.
func (s *Stream) merge(a, b afters) afters {
	if len(b) == 0 {
		return a
	}
	all := make(afters, 0, len(a)+len(b))
	for len(a)+len(b) > 0 {
		var next after
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].of.order.id < b[0].of.order.id:
			next, a = a[0], a[1:]
		case len(a) == 0 || b[0].of.order.id < a[0].of.order.id:
			next, b = b[0], b[1:]
		default:
			next = after{a[0].of, max(a[0].n, b[0].n)}
			a, b = a[1:], b[1:]
		}
		if next.of != s && !next.of.order.ended() {
			all = append(all, next)
		}
	}
	return all
}

// mayBeCaptured says whether the driver has to be asked if the stream is being captured.
func (s *Stream) mayBeCaptured() bool {
	return s.wrapped || s.order.joined.Load() || s.dev.state.parent.captures.active.Load() > 0
}

// captured asks the driver; in doubt it is true.
func (s *Stream) captured(o *openDevice) bool {
	capturing, err := o.Capturing(s.queue)
	return capturing || err != nil
}

// inContext says whether Device.Sync is known to wait for the stream.
func (s *Stream) inContext() bool {
	return !s.wrapped || s.handle <= perThread || s.order.context.Load()
}

// sync waits for all work of the device's context.
func (s *deviceState) sync(o *openDevice) error {
	var ends []point
	s.streamsMu.RLock()
	for _, st := range s.streams {
		if st.inContext() {
			ends = append(ends, st.nextPoint())
		}
	}
	s.streamsMu.RUnlock()
	if err := o.Sync(); err != nil {
		return err
	}
	for _, p := range ends {
		p.finish()
	}
	return nil
}
