package order

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Fences is the door of package vmm for package pool: see package door. Its type is *vmm.Stream.
type Fences[S any] interface {
	// Fence records an event at the end of the work that the stream has now. Its event comes from the
	// device's pool and costs no allocation. When the Device closes, its work has ended. While the
	// stream is being captured it returns ErrCapturing. The caller must Free the Fence.
	Fence(s S) (Fence, error)
	// SyncFence waits until the work of a Fence of the stream has ended.
	SyncFence(s S, f Fence) error
	// WaitFence makes later work of the stream wait for the Fence, of any device of the same driver.
	// Stream.After counts it.
	WaitFence(s S, f Fence) error
}

// Fence is an event of the device's pool, recorded at the end of some work. The zero one stands
// for work that has ended. Safe for concurrent use, up to Free.
type Fence struct {
	on   *Device // whose event it is, retained; nil if there is nothing to wait for
	e    driver.Event
	at   Point // none for queues that belong to no Stream
	late *late // of LateFence, of a stream that was being captured
}

// late is an event that is recorded when the capture of its stream ends.
type late struct {
	mu    sync.Mutex // nothing is locked while it is held
	f     Fence      // once has is true
	has   bool
	freed bool
	err   error // why it will have none
}

// newFence takes an event out of the pool, or makes one; the zero one if the device is closing.
func (d *Device) newFence() (Fence, error) {
	if !d.Retain() {
		return Fence{}, nil
	}
	f := Fence{on: d}
	d.mu.Lock()
	if last := len(d.events) - 1; last >= 0 {
		f.e, d.events = d.events[last], d.events[:last]
	}
	d.mu.Unlock()
	if f.e == 0 {
		var err error
		if f.e, err = d.NewEvent(driver.EventBlocking); err != nil {
			d.Release()
			return Fence{}, err
		}
	}
	return f, nil
}

// fence is a fence that record records an event for, which shares the gate.
func (d *Device) fence(record func(driver.Event) (Point, error)) (Fence, error) {
	f, err := d.newFence()
	if err != nil || f.on == nil {
		return Fence{}, err
	}
	d.gate.share()
	f.at, err = record(f.e)
	d.gate.unshare()
	if err != nil {
		f.Free()
		return Fence{}, err
	}
	return f, nil
}

// Fence is at the end of the stream's work; ErrCapturing while the stream is being captured.
// The caller must Free it, and keeps the stream from being freed.
func (d *Device) Fence(s *Stream) (Fence, error) {
	return d.fence(func(e driver.Event) (Point, error) {
		if err := d.notCapturing(s.Queue); err != nil {
			return Point{}, err
		}
		at := s.NextPoint()
		return at, d.recordWork(e, s)
	})
}

// recordWork records an event on a stream that the caller knows not to be in a capture. Another
// library may begin one of a wrapped stream at any time: if the event has become part of it, it
// returns ErrCapturing. The gate is shared.
func (d *Device) recordWork(e driver.Event, s *Stream) error {
	err := d.record(e, s)
	if err != nil || !s.Wrapped {
		return err
	}
	// The stream first: a query of an event in a capture that is open may destroy it.
	capturing, err := d.raw.Capturing(s.Queue)
	if err == nil && !capturing {
		_, err = d.raw.Done(e)
		capturing = errors.Is(err, driver.ErrInvalid) // of one that has ended
	}
	switch {
	case capturing:
		return fmt.Errorf("%w: by another library, meanwhile", driver.ErrCapturing)
	case err != nil && lost(err):
		return nil
	}
	return err
}

// record records an event on a stream. The gate is shared.
func (d *Device) record(e driver.Event, s *Stream) error {
	err := d.raw.Record(e, s.Queue)
	if err == nil && s.Wrapped {
		s.context.Store(true) // a stream of another context would have refused it
	}
	return err
}

// LateFence is Fence; but while the stream is in a capture that Begin has begun, the event is
// recorded when that ends.
func (d *Device) LateFence(s *Stream) (Fence, error) {
	for {
		f, err := d.Fence(s)
		if errors.Is(err, driver.ErrCapturing) {
			f, err = d.fenceAfterCapture(s)
		}
		if !errors.Is(err, errNotInCapture) {
			return f, err
		}
	}
}

// errNotInCapture is of a capture that has ended meanwhile.
var errNotInCapture = errors.New("the stream is in no capture")

// fenceAfterCapture is a fence whose event is recorded when the stream's capture ends.
func (d *Device) fenceAfterCapture(s *Stream) (Fence, error) {
	d.gate.share()
	defer d.gate.unshare()
	if s.in.Load() == nil {
		return Fence{}, cmp.Or(d.notCapturing(s.Queue), errNotInCapture)
	}
	l := &late{}
	s.lateMu.Lock()
	defer s.lateMu.Unlock()
	s.late = append(s.late, lateOn{d, l})
	return Fence{on: d, late: l, at: Point{of: s}}, nil
}

// lateOn is a fence that waits for the capture's end.
type lateOn struct {
	d *Device
	l *late
}

// recordLate gives the fences that wait for the capture's end their events. The gate is held
// alone. What cannot be recorded is left to Fence.Done.
func (s *Stream) recordLate() {
	s.lateMu.Lock()
	all := s.late
	s.late = nil
	s.lateMu.Unlock()
	for _, x := range all {
		if s.ended() {
			x.l.settle(Fence{}, nil)
			continue
		}
		f, err := x.d.newFence()
		if err == nil && f.on != nil {
			f.at = s.NextPoint()
			if err = x.d.recordWork(f.e, s); err != nil {
				f.Free()
			}
		}
		x.l.settle(f, err)
	}
}

// settle gives a late fence its event.
func (l *late) settle(f Fence, err error) {
	l.mu.Lock()
	freed := l.freed
	l.f, l.has, l.err = f, err == nil, err
	l.mu.Unlock()
	if freed && err == nil {
		f.Free()
	}
}

// QueueFence is at the end of the work of a queue that is never captured.
func (d *Device) QueueFence(queue driver.Stream) (Fence, error) {
	return d.fence(func(e driver.Event) (Point, error) { return Point{}, d.raw.Record(e, queue) })
}

// ContextFence is at the end of all work of the context; ErrCapturing while a stream of it is
// being captured, as far as NoneCaptured tells. Where the driver cannot record such an event it
// waits, and the Fence is the zero one.
func (d *Device) ContextFence() (Fence, error) {
	waited := false
	f, err := d.fence(func(e driver.Event) (Point, error) {
		if err := d.NoneCaptured(); err != nil {
			return Point{}, err
		}
		err := error(driver.ErrNotSupported)
		if c, ok := d.raw.(driver.ContextRecorder); ok {
			err = c.RecordContext(e)
		}
		if errors.Is(err, driver.ErrNotSupported) {
			waited = true
			err = d.raw.Sync()
		}
		return Point{}, err
	})
	if err == nil && waited {
		f.Free()
		f = Fence{}
	}
	return f, err
}

// RecordEvent is for a call that records an event of the program's own anew on the stream:
// begin is called just before, when the event must not have a Point any more. It returns the
// event's Point: none if the stream is being captured, since then the event does not tell what
// has run.
func (d *Device) RecordEvent(e driver.Event, s *Stream, begin func()) (at Point, err error) {
	d.gate.share()
	capturing := s.MayBeCaptured() && s.captured(d)
	if !capturing {
		defer d.gate.unshare()
		at = s.NextPoint()
		begin()
		return at, d.record(e, s)
	}
	// The event becomes one of the capture, which a stream must not wait for unawares.
	d.gate.unshare()
	unlock := alone([]*Gate{d.gate})
	defer unlock()
	begin()
	return Point{}, d.record(e, s)
}

// NewEventAt is a Fence at the end of the stream's work, also while it is being captured: then
// it is an event of the capture, without a Point.
func (d *Device) NewEventAt(s *Stream) (Fence, error) {
	return d.fence(func(e driver.Event) (at Point, err error) {
		if !s.MayBeCaptured() || !s.captured(d) {
			at = s.NextPoint()
		}
		return at, d.record(e, s)
	})
}

// IsZero reports whether there is nothing to wait for.
func (f Fence) IsZero() bool { return f.on == nil }

// On is the device of the fence, nil for the zero one.
func (f Fence) On() *Device { return f.on }

// Event is the fence's event, 0 if there is nothing to wait for.
func (f Fence) Event() driver.Event { return f.e }

// Of is the Owner of the Stream that the fence is at the end of, nil if it is of no Stream.
func (f Fence) Of() any {
	if f.at.of == nil {
		return nil
	}
	return f.at.of.Owner
}

// Point is where the fence stands.
func (f Fence) Point() Point { return f.at }

// Free gives the Fence up. It must be called once.
func (f Fence) Free() {
	if f.on == nil {
		return
	}
	if l := f.late; l != nil {
		l.mu.Lock()
		l.freed = true
		has := l.has
		l.mu.Unlock()
		if has {
			l.f.Free()
		}
		return
	}
	f.on.mu.Lock()
	f.on.events = append(f.on.events, f.e)
	f.on.mu.Unlock()
	f.on.Release()
}

// Sync waits for the work. It is not for a LateFence.
func (f Fence) Sync() error {
	if f.on == nil {
		return nil
	}
	err := f.on.SyncEvent(f.e)
	if err == nil {
		f.at.Finish()
	}
	return err
}

// SyncAndFree is Sync and Free.
func (f Fence) SyncAndFree() error {
	defer f.Free()
	return f.Sync()
}

// Done reports whether the work has ended, by itself or with its device.
func (f Fence) Done() (bool, error) {
	if f.on == nil {
		return true, nil
	}
	if l := f.late; l != nil {
		l.mu.Lock()
		now, has, err := l.f, l.has, l.err
		l.mu.Unlock()
		if !has || err != nil {
			return false, err
		}
		return now.Done()
	}
	done, err := f.on.Done(f.e)
	switch {
	case err != nil && lost(err):
		return true, nil
	case err == nil && done:
		f.at.Finish()
	}
	return done, err
}
