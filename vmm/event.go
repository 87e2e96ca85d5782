package vmm

import (
	"fmt"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Event is a point in a stream. Safe for concurrent use. The caller must Close it.
type Event struct {
	dev *Device
	on  *openDevice
	raw driver.Event

	mu     sync.Mutex
	users  int // calls under way; the event is not used again before they end
	closed bool
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
	defer e.mu.Unlock()
	e.users--
	e.recycle()
}

// recycle lets the event go once it is closed and nobody waits for it. It needs e.mu.
func (e *Event) recycle() {
	if e.closed && e.users == 0 {
		e.on.recycle(e.raw)
		e.dev.untrack(e)
	}
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

// Sync waits, asleep, until the work before the event has finished.
func (e *Event) Sync() error {
	return e.fail("wait for event", e.with(func(dev driver.Device) error { return dev.SyncEvent(e.raw) }))
}

// Close gives the event up; calls under way go on. Twice is fine, and so is a
// nil Event.
func (e *Event) Close() error {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	e.recycle()
	return nil
}
