//go:build linux

package host

import (
	"errors"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// event names the last point that was recorded in it.
type event struct {
	context *context
	flags   driver.EventFlags
	last    *record
	capture *capture // it was last recorded in one
	after   []int    // the captured work before that record

	shared *sharedEvent // with other processes, and then last is not used; nil: with none
	opened bool         // by OpenEvent
}

// record is a point in a stream.
type record struct {
	op
	at    time.Time
	frees frees // before it
}

// NewEvent makes an event. No wait spins here, with or without EventBlocking.
func (v *device) NewEvent(flags driver.EventFlags) (e driver.Event, err error) {
	const verb = "NewEvent"
	err = v.onContext(verb, func(c *context) (err error) {
		known := driver.EventTiming | driver.EventBlocking | driver.EventInterprocess
		both := driver.EventTiming | driver.EventInterprocess
		if flags&^known != 0 || flags&both == both {
			return refuse(verb, driver.ErrInvalid, "event flags %#x", uint8(flags))
		}
		ev := &event{context: c, flags: flags}
		if flags&driver.EventInterprocess != 0 {
			if ev.shared, err = c.d.newSharedEvent(verb); err != nil {
				return err
			}
		}
		e = c.d.addEvent(ev)
		return nil
	})
	return e, err
}

// addEvent lists an event. The caller holds workMu.
func (d *Driver) addEvent(ev *event) driver.Event {
	d.lastID++
	d.events[driver.Event(d.lastID)] = ev
	return driver.Event(d.lastID)
}

// FreeEvent removes an event. Waits for its record go on.
func (v *device) FreeEvent(e driver.Event) error {
	const verb = "FreeEvent"
	return v.onContextEvenLost(verb, func(c *context) error {
		if c.d.events[e] == nil { // an event whose context was reset can be freed
			return refuse(verb, driver.ErrInvalid, "no event %d", e)
		}
		c.d.removeEvent(e)
		return nil
	})
}

// removeEvent lists an event no longer. The caller holds workMu.
func (d *Driver) removeEvent(e driver.Event) {
	if s := d.events[e].shared; s != nil {
		s.release()
	}
	delete(d.events, e)
}

// event finds an event of any device. The caller holds workMu.
func (d *Driver) event(verb string, e driver.Event) (*event, error) {
	x := d.events[e]
	switch {
	case x == nil:
		return nil, refuse(verb, driver.ErrInvalid, "no event %d", e)
	case x.context.reset.Load():
		return nil, refuse(verb, driver.ErrInvalid, "event %d went with the context of host:%d, which was reset", e, x.context.state.ordinal)
	}
	return x, nil
}

// Record records the event after the work that the stream has now.
func (v *device) Record(e driver.Event, s driver.Stream) error {
	const verb = "Record"
	end := v.looks(verb, s)
	defer end()
	return v.onStream(verb, s, func(x *stream) error {
		ev, err := v.context.d.event(verb, e)
		if err != nil {
			return err
		}
		if ev.context != v.context {
			return refuse(verb, driver.ErrInvalid, "event %d is of another device than stream %d", e, s)
		}
		if x.capture != nil {
			if err := x.capture.checkWork(verb); err != nil {
				return err
			}
			ev.last, ev.capture, ev.after = nil, x.capture, x.after
			return nil
		}
		if err := x.checkWork(verb); err != nil {
			return err
		}
		x.orderDefaults()
		x.record(ev, nil)
		return nil
	})
}

// record records the event after the work of the stream, and after what is pending elsewhere:
// with an op of its own, unless there is nothing to wait for. The caller holds workMu.
func (s *stream) record(ev *event, pending []<-chan struct{}) {
	r := &record{frees: s.frees()}
	r.run = func(c *context) bool {
		whole := len(pending) == 0 || waitFor(pending...).run(c)
		r.at = time.Now()
		return whole
	}
	ev.last, ev.capture, ev.after = r, nil, nil
	if x := ev.shared; x != nil {
		n := x.begin()
		x.uses++
		r.atEnd = func() { x.markEnded(n); x.release() }
	}
	if len(s.lastOps()) == 0 && len(pending) == 0 {
		r.run(s.context)
		r.end()
		return
	}
	s.push(&r.op)
}

// RecordContext records the event after all work that the context's streams have now. As a wait
// for the context does, it destroys captures and returns ErrCapturing.
func (v *device) RecordContext(e driver.Event) error {
	const verb = "RecordContext"
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	end := v.context.looksAt(verb, &v.context.meetings)
	defer end()
	return v.onContext(verb, func(c *context) error {
		ev, err := c.d.event(verb, e)
		if err != nil {
			return err
		}
		if ev.context != c {
			return refuse(verb, driver.ErrInvalid, "event %d is of another device", e)
		}
		if err := c.destroyCaptures(verb); err != nil {
			return err
		}
		var pending []<-chan struct{}
		for _, o := range c.pendingOps() {
			if done := o.pending(); done != nil {
				pending = append(pending, done)
			}
		}
		// In a stream that is there for this record alone.
		x := &stream{context: c}
		for s := range c.allStreams() {
			x.follow(s.frees())
		}
		x.record(ev, pending)
		return nil
	})
}

// Wait makes later work of the stream wait for the event's last record. If that is in a
// capture, the stream becomes part of the capture. Captured work cannot wait for a record
// outside the capture.
func (v *device) Wait(s driver.Stream, e driver.Event) error {
	const verb = "Wait"
	end := v.changes(verb, s, e)
	defer end()
	return v.onStream(verb, s, func(x *stream) error {
		ev, err := v.context.d.event(verb, e)
		if err != nil {
			return err
		}
		if x.capture != nil {
			if err := x.capture.checkWork(verb); err != nil {
				return err
			}
		}
		if ev.capture != nil {
			return x.captureWait(verb, ev)
		}
		recorded := ev.last != nil
		var elsewhere sharedRecord
		if ev.shared != nil {
			elsewhere = ev.shared.last()
			recorded = elsewhere.n > 0
		}
		if x.capture != nil && recorded {
			return refuse(verb, driver.ErrInvalid, "event %d was not recorded in the capture of stream %d", e, s)
		}
		if err := x.checkWork(verb); err != nil {
			return err
		}
		switch {
		case !recorded:
		case ev.shared != nil && !elsewhere.endedOrDead():
			x.orderDefaults()
			ev.shared.uses++
			o := &op{work: work{run: func(c *context) bool { return elsewhere.wait(c.stopCh) }}}
			o.atEnd = ev.shared.release
			x.push(o)
		case ev.shared == nil:
			x.follow(ev.last.frees)
			if !ev.last.ended {
				x.orderDefaults()
				x.push(waitFor(ev.last.pending()))
			}
		}
		return nil
	})
}

// SyncEvent waits for the event's last record.
func (v *device) SyncEvent(e driver.Event) error {
	const verb = "SyncEvent"
	err := v.onEvent(verb, e, func(ev *event) error {
		var err error
		switch {
		case ev.shared != nil:
			err = ev.context.waitShared(verb, ev.shared)
		case ev.last != nil:
			err = ev.context.wait(verb, []*op{&ev.last.op})
		}
		if errors.Is(err, driver.ErrContextReset) && ev.context != v.context {
			return refuse(verb, driver.ErrInvalid, "the context of event %d was reset meanwhile", e)
		}
		return err
	})
	if err != nil {
		return err
	}
	v.context.d.afterWait(v.context.state)
	return nil
}

// waitShared waits for the last record of any process, and releases workMu meanwhile.
func (c *context) waitShared(verb string, s *sharedEvent) error {
	last := s.last()
	if last.endedOrDead() {
		return nil
	}
	s.uses++
	c.d.workMu.Unlock()
	whole := last.wait(c.stopCh)
	c.d.workMu.Lock()
	s.release()
	if !whole || c.d.lost.Load() {
		return c.stoppedError(verb)
	}
	return nil
}

// Done reports whether the event's last record has been reached.
func (v *device) Done(e driver.Event) (bool, error) {
	var yes bool
	err := v.onEvent("Done", e, func(ev *event) error {
		if ev.shared != nil {
			yes = ev.shared.last().endedOrDead()
			return nil
		}
		yes = ev.last == nil || ev.last.ended
		return nil
	})
	return yes, err
}

// Elapsed is the time between two records that have been reached. On the card
// each device has a clock of its own, so both must be of one device.
func (v *device) Elapsed(from, to driver.Event) (time.Duration, error) {
	const verb = "Elapsed"
	// One after the other, because onEvent locks workMu.
	var at [2]time.Time
	var of [2]*context
	for i, e := range []driver.Event{from, to} {
		err := v.onEvent(verb, e, func(ev *event) error {
			switch {
			case ev.flags&driver.EventTiming == 0:
				return refuse(verb, driver.ErrInvalid, "event %d was made without timing", e)
			case ev.last == nil || !ev.last.ended || ev.last.dropped:
				return refuse(verb, driver.ErrInvalid, "event %d has not been reached", e)
			}
			at[i], of[i] = ev.last.at, ev.context
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	if of[0] != of[1] {
		return 0, refuse(verb, driver.ErrInvalid, "events %d and %d are of different devices", from, to)
	}
	return at[1].Sub(at[0]), nil
}

// onEvent calls f with an event that can be queried, under workMu.
func (v *device) onEvent(verb string, e driver.Event, f func(*event) error) error {
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	d := v.context.d
	d.workMu.Lock()
	defer d.workMu.Unlock()
	ev, err := d.event(verb, e)
	switch {
	case err != nil:
		return err
	case d.lost.Load():
		return d.lostError(verb, ev.context.state)
	case ev.capture != nil && !ev.capture.ended:
		return refuse(verb, driver.ErrCapturing, "event %d was recorded in a capture", e)
	case ev.capture != nil:
		return refuse(verb, driver.ErrInvalid, "event %d was recorded in a capture and never since", e)
	}
	return f(ev)
}
