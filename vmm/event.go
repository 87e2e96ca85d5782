package vmm

import (
	"fmt"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Event is a point in a stream. Safe for concurrent use. The caller must Close it.
type Event struct {
	dev    *Device
	on     *openDevice
	raw    driver.Event
	pooled bool // goes back to the device's free events

	mu     sync.Mutex
	users  int // calls under way; the event is not used again before they end
	closed bool
}

// NewEvent makes an event that no stream has been recorded in yet: it counts as
// reached. The flags are as in CUDA: EventTiming for Elapsed, EventBlocking for
// a Sync that sleeps, EventInterprocess. What Stream.Record gives is EventBlocking
// alone. The caller must Close it.
func (d *Device) NewEvent(flags EventFlags) (*Event, error) {
	e := &Event{dev: d}
	err := d.track(e, "event") // first, so that the device stays open
	if err == nil {
		if e.on, err = d.raw(); err == nil {
			e.raw, err = e.on.NewEvent(flags)
		}
		if err != nil {
			d.untrack(e)
		}
	}
	if err != nil {
		return nil, d.fail("make event", 0, 0, err)
	}
	return e, nil
}

// Record moves the event to the stream's end of now; calls that wait for where it
// was go on waiting for that. The stream has to be of the event's device.
func (e *Event) Record(s *Stream) error {
	return e.fail("record event", e.with(func(driver.Device) error {
		return s.with(func(o *openDevice) error {
			if err := e.sameDriver(o); err != nil {
				return err
			}
			return o.Record(e.raw, s.raw)
		})
	}))
}

// sameDriver refuses the event to another driver, which would take its number for
// one of its own.
func (e *Event) sameDriver(o *openDevice) error {
	if e.on.port.sys != o.port.sys {
		return fmt.Errorf("%w: the event is of another driver", ErrInvalid)
	}
	return nil
}

// with runs f, which may wait, with the event kept from being used again.
func (e *Event) with(f func(dev driver.Device) error) error {
	if e == nil {
		return fmt.Errorf("%w: no event", ErrInvalid)
	}
	if err := e.enter(); err != nil {
		return err
	}
	defer e.exit()
	return f(e.on)
}

func (e *Event) enter() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("%w: event", ErrClosed)
	}
	e.users++
	return nil
}

func (e *Event) exit() {
	e.mu.Lock()
	e.users--
	last := e.closed && e.users == 0
	e.mu.Unlock()
	if last && e.free() != nil {
		e.dev.strand(e.free)
	}
}

// free gives up an event that is closed and nobody waits for.
func (e *Event) free() error {
	if e.pooled {
		e.on.recycle(e.raw)
	} else if err := e.on.FreeEvent(e.raw); err != nil {
		return err
	}
	e.dev.untrack(e)
	return nil
}

func (e *Event) fail(op string, err error) error {
	if e == nil {
		return (*Device)(nil).fail(op, 0, 0, err)
	}
	return e.dev.fail(op, 0, 0, err)
}

// Done says whether the work before the event has finished.
func (e *Event) Done() (done bool, err error) {
	err = e.with(func(dev driver.Device) (err error) {
		done, err = dev.Done(e.raw)
		return err
	})
	return done, e.fail("query event", err)
}

// Sync waits until the work before the event has finished.
func (e *Event) Sync() error {
	return e.fail("wait for event", e.with(func(dev driver.Device) error { return dev.SyncEvent(e.raw) }))
}

// Elapsed is the device's own time from one event to this one. Both need
// EventTiming and have to be reached, else it answers ErrInvalid.
func (e *Event) Elapsed(from *Event) (took time.Duration, err error) {
	err = e.with(func(dev driver.Device) error {
		return from.with(func(driver.Device) (err error) {
			if err := from.sameDriver(e.on); err != nil {
				return err
			}
			took, err = dev.Elapsed(from.raw, e.raw)
			return err
		})
	})
	return took, e.fail("read event", err)
}

// Close gives the event up; calls under way go on. Twice is fine, and so is a
// nil Event. After an error it can be called again.
func (e *Event) Close() error {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	now := e.users == 0
	e.mu.Unlock()
	if !now {
		return nil
	}
	err := e.free()
	if err != nil {
		e.mu.Lock()
		e.closed = false
		e.mu.Unlock()
	}
	return e.fail("close event", err)
}
