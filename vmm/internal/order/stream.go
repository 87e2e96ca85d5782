package order

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// What is known, without asking the driver, of which work comes before which.
//
// Each event that this package records on a stream has a number there. The number is taken
// before the driver is asked to record. So the event covers all work that was queued before a
// smaller number was read. An event also keeps what its stream came after at the time. A stream
// that waits for the event takes both over. Once the event is known to be reached, all of that
// work has ended.

// Stream is what is known of a stream's work, of what comes before it, and of its captures.
// It must not be copied.
type Stream struct {
	// Immutable.
	id      uint64 // from 1 on
	Queue   driver.Stream
	Wrapped bool // another library's
	Owner   any  // the Stream that programs have
	gate    *Gate

	points   atomic.Uint64          // numbers that were taken
	finished atomic.Uint64          // see Stream.Finished
	after    atomic.Pointer[afters] // what later work comes after; replaced, never changed
	joined   atomic.Bool            // a capture, by a wait for an event of it
	context  atomic.Bool            // of a wrapped stream: it takes events of the device's context
	shown    atomic.Bool            // see Stream.Show

	in   atomic.Pointer[capture] // that Begin has begun; changes with its gates alone
	held atomic.Int64            // captures of it neither begin nor end; grows with the gate shared

	lateMu sync.Mutex // nothing is locked while it is held
	late   []lateOn   // that wait for the capture's end

	queued  atomic.Uint64 // pieces of work that this process's calls have queued
	roomMu  lock.Mutex
	marks   []mark // events between them, the first one first
	reached uint64 // of queued: how many are known to have run
}

var streamCount atomic.Uint64 // for their ids

// Init makes the Stream one of the gate's device, until it is freed. Queue and Wrapped are set.
func (s *Stream) Init(gate *Gate, owner any) {
	s.id = streamCount.Add(1)
	s.gate, s.Owner = gate, owner
	s.roomMu.At(lock.StreamRoom, 0)
	gate.add(s)
}

// End notes that all work of the stream has ended, and that there will be no more.
func (s *Stream) End() {
	s.finished.Store(math.MaxUint64)
	s.after.Store(nil)
}

// ended reports whether End was called.
func (s *Stream) ended() bool { return s.finished.Load() == math.MaxUint64 }

// finish raises finished to n.
func (s *Stream) finish(n uint64) {
	for {
		was := s.finished.Load()
		if was >= n || s.finished.CompareAndSwap(was, n) {
			return
		}
	}
}

// Point is where an event stands: after the work that a stream had, and after what that came
// after. The zero point is none: of an event that was never recorded, or during a capture.
type Point struct {
	of    *Stream
	n     uint64
	after *afters
}

// Finish notes that the event there is reached.
func (p Point) Finish() {
	if p.of == nil {
		return
	}
	p.of.finish(p.n)
	if p.after != nil {
		p.after.events.finish()
		p.of.after.CompareAndSwap(p.after, nil) // it says nothing more
	}
}

// Point is the number of the last event that was begun to be recorded.
func (s *Stream) Point() uint64 {
	return s.points.Load()
}

// After is the highest number of an event of the other stream that all later work on this one
// comes after. It may leave out an event that is known to be reached: Finished of the other stream
// was as high before.
func (s *Stream) After(other *Stream) uint64 {
	if s == other {
		return s.Point()
	}
	a := s.after.Load()
	if a == nil || other.ended() {
		return 0
	}
	return a.events.number(other)
}

// Finished is the number of an event such that the work before it is known to have ended.
func (s *Stream) Finished() uint64 {
	return s.finished.Load()
}

// NextPoint is the end of the stream's work, for a call that is about to cover it: the caller
// asks the driver after it. The stream is not being captured.
func (s *Stream) NextPoint() Point {
	return Point{s, s.points.Add(1), s.after.Load()}
}

// waited notes that the stream waits for an event at p: later work comes after it.
func (s *Stream) waited(p Point) {
	if p.of == nil || p.of == s {
		return
	}
	for {
		was := s.after.Load()
		next := was.with(p)
		if next == was || s.after.CompareAndSwap(was, next) {
			return
		}
	}
}

// MayBeCaptured reports whether the driver has to be asked if the stream is being captured. Unless
// the gate is shared, or the caller keeps BeginCapture off the stream, the answer may change at
// once.
func (s *Stream) MayBeCaptured() bool {
	return s.Wrapped || s.joined.Load() || s.gate.open.Load() > 0
}

// Show notes that code outside this package has the driver's stream, or may have it: it can begin
// a capture of it that this package does not see. From now on a call that a capture does not allow
// asks the driver about the stream.
func (s *Stream) Show() { s.shown.Store(true) }

// captured asks the driver; in doubt it is true.
func (s *Stream) captured(d *Device) bool {
	capturing, err := d.raw.Capturing(s.Queue)
	return capturing || err != nil
}

// Hold keeps captures of the stream from beginning and ending until Unhold.
func (s *Stream) Hold() {
	s.gate.share()
	defer s.gate.unshare()
	s.held.Add(1)
}

// Unhold undoes Hold.
func (s *Stream) Unhold() { s.held.Add(-1) }

// InContext reports whether an event of the device's context is known to cover the stream.
func (s *Stream) InContext() bool {
	return !s.Wrapped || s.Queue == 0 || s.context.Load()
}
