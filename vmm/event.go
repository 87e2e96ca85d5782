package vmm

import (
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
)

// Event is a point in a stream. Safe for concurrent use. The caller must Close it.
type Event struct {
	dev    *Device
	on     *openDevice
	e      driver.Event
	f      order.Fence // whose event it is, if it goes back to the device's pool
	begin  func()      // beginRecord
	shared bool        // other processes may record it, so its place is never known

	mu        lock.Mutex
	users     int // calls under way; the event is not used again before they end
	closed    bool
	at        order.Point // where it stands; none while it is being recorded
	recording int         // calls of Record under way
	contested bool        // some of them overlap, so that the last one is not known
}

// makeEvent lists an event as open, first, so that the device stays open, and fills it.
func (d *Device) makeEvent(fill func(*Event) error) (*Event, error) {
	e := &Event{dev: d}
	e.begin = e.beginRecord
	e.mu.At(lock.Event, 0)
	if err := d.track(e, "event"); err != nil {
		return nil, err
	}
	if err := fill(e); err != nil {
		d.untrack(e)
		return nil, err
	}
	return e, nil
}

// NewEvent makes an event. It counts as reached until it is recorded. The flags are as in CUDA:
// EventTiming for Elapsed, EventBlocking for a Sync that sleeps, EventInterprocess for IPCHandle. Events
// that Stream.Record makes have EventBlocking alone. The caller must Close it.
func (d *Device) NewEvent(flags EventFlags) (*Event, error) {
	e, err := d.makeEvent(func(e *Event) (err error) {
		e.shared = flags&EventInterprocess != 0
		if e.on, err = d.ensureOpen(); err == nil {
			e.e, err = e.on.NewEvent(flags)
		}
		return err
	})
	return e, d.wrap("make event", 0, 0, err)
}

// IPCHandle returns the handle by which OpenEvent opens the event in another process; any channel may
// carry it. It returns ErrInvalid for an event made without EventInterprocess, and ErrNotSupported where
// the driver has no such handles. The handle keeps nothing alive.
func (e *Event) IPCHandle() (h IPCHandle, err error) {
	err = e.with(func() error {
		ipc, err := e.on.legacyIPC()
		if err == nil {
			h, err = ipc.EventHandle(e.e)
		}
		return err
	})
	return h, e.wrap("export event", err)
}

// OpenEvent opens an event of another process on the same machine by its Event.IPCHandle. Both processes
// can record it, wait for it and query it; it stands where the last Record of either has put it.
// Stream.After, Stream.Finished and their kin ignore such an event, here and where it was made. OpenEvent
// returns ErrInvalid for a handle of this process and for what is no handle, and ErrNotSupported where
// the driver has no such handles. Once the process that made the event closes it, results of calls on
// this one are undefined. On CUDA a handle also opens when that process has ended. The caller must Close
// it.
func (d *Device) OpenEvent(h IPCHandle) (*Event, error) {
	e, err := d.makeEvent(func(e *Event) (err error) {
		e.shared = true
		if e.on, err = d.ensureOpen(); err != nil {
			return err
		}
		ipc, err := e.on.legacyIPC()
		if err == nil {
			e.e, err = ipc.OpenEvent(h)
		}
		return err
	})
	return e, d.wrap("open event", 0, 0, err)
}

// legacyIPC is the driver's device as one that has handles for other processes.
func (o *openDevice) legacyIPC() (driver.LegacyIPC, error) {
	if ipc, ok := order.As[driver.LegacyIPC](o.Device); ok {
		return ipc, nil
	}
	return nil, fmt.Errorf("%w: handles for other processes", ErrNotSupported)
}

// Record records the event again, after the work queued on the stream so far. Calls that wait for its old
// position go on waiting for that. The stream must be of the event's device.
func (e *Event) Record(s *Stream) error {
	err := e.record(s)
	if err != nil {
		err = e.wrap("record event", err)
	}
	return err
}

// record is Record. It is called around small calls, so it allocates no functions.
func (e *Event) record(s *Stream) error {
	if err := e.use(); err != nil {
		return err
	}
	defer e.release()
	o, err := s.use()
	if err != nil {
		return err
	}
	defer s.mu.RUnlock()
	if err := e.sameDriver(o); err != nil {
		return err
	}
	at, err := o.RecordEvent(e.e, &s.order, e.begin)
	if err != nil {
		at = order.Point{}
	}
	e.endRecord(at)
	return err
}

// beginRecord forgets where the event stands: the driver is about to move it.
func (e *Event) beginRecord() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = order.Point{}
	e.recording++
	e.contested = e.contested || e.recording > 1
}

// endRecord notes where the event stands now. Of several calls that overlapped it is not known
// which one the driver took last, so then its place stays unknown; so does that of an event
// that another process may record.
func (e *Event) endRecord(at order.Point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.contested && !e.shared {
		e.at = at
	}
	if e.recording--; e.recording == 0 {
		e.contested = false
	}
}

// point is where the event stands; none while it is being recorded.
func (e *Event) point() order.Point {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at
}

// unmoved is at if the event has stood there ever since point returned it, and so for the
// whole of a driver's call in between; else none.
func (e *Event) unmoved(at order.Point) order.Point {
	if e.point() != at {
		return order.Point{}
	}
	return at
}

// sameDriver refuses the event to another driver, which would take its number for
// one of its own.
func (e *Event) sameDriver(o *openDevice) error {
	if e.on.state.parent != o.state.parent {
		return fmt.Errorf("%w: the event is of another driver", ErrInvalid)
	}
	return nil
}

// with runs f, which may wait, with the event kept from being used again.
func (e *Event) with(f func() error) error {
	if err := e.use(); err != nil {
		return err
	}
	defer e.release()
	return f()
}

// use keeps the event from being used again until release.
func (e *Event) use() error {
	if e == nil || e.dev == nil {
		return fmt.Errorf("%w: no event", ErrInvalid)
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return fmt.Errorf("%w: event", ErrClosed)
	}
	e.users++
	e.mu.Unlock()
	return nil
}

func (e *Event) release() {
	e.mu.Lock()
	e.users--
	last := e.closed && e.users == 0
	e.mu.Unlock()
	if last && e.free() != nil {
		e.dev.state.parent.refusedCalls.add(e.dev, e.free)
	}
}

// free gives up an event that is closed and not in use.
func (e *Event) free() error {
	if !e.f.IsZero() {
		e.f.Free()
	} else if err := e.on.FreeEvent(e.e); err != nil {
		return err
	}
	e.dev.untrack(e)
	return nil
}

func (e *Event) wrap(op string, err error) error {
	if e == nil || e.dev == nil {
		return (*Device)(nil).wrap(op, 0, 0, err)
	}
	return e.dev.wrap(op, 0, 0, err)
}

// Done reports whether the work before the event has finished.
func (e *Event) Done() (done bool, err error) {
	err = e.with(func() (err error) {
		at := e.point()
		if done, err = e.on.Done(e.e); done && err == nil {
			e.unmoved(at).Finish()
		}
		return err
	})
	return done, e.wrap("query event", err)
}

// Sync waits until the work before the event has finished.
func (e *Event) Sync() error {
	err := e.with(func() error {
		at := e.point()
		err := e.on.SyncEvent(e.e)
		if err == nil {
			e.unmoved(at).Finish()
		}
		return err
	})
	if err == nil {
		e.on.state.parent.runSyncHooks()
	}
	return e.wrap("wait for event", err)
}

// Elapsed is the device's own time from one event to this one. It returns ErrInvalid unless both have
// EventTiming and are reached.
func (e *Event) Elapsed(from *Event) (took time.Duration, err error) {
	err = e.with(func() error {
		return from.with(func() (err error) {
			if err := from.sameDriver(e.on); err != nil {
				return err
			}
			took, err = e.on.Elapsed(from.e, e.e)
			return err
		})
	})
	return took, e.wrap("read event", err)
}

// Close gives the event up; calls under way go on. Twice is fine, and so is a
// nil Event. After an error it can be called again.
func (e *Event) Close() error {
	if e == nil || e.dev == nil {
		return nil
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	now := e.users == 0 // else the last call under way frees it
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
	return e.wrap("close event", err)
}
