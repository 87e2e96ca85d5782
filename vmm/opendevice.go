package vmm

import (
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// openDevice is a driver's device from the first need of it to the Close of the
// last Device on it, with what ends with it: events and the pinned memory of
// copies. Whoever waits for one of its events holds it. A hold outlives Close:
// the last one to be given up closes the driver's device then.
type openDevice struct {
	driver.Device
	port  *port
	stage staging

	holds atomic.Int64 // and closingBit, once Device.Close lets in no more

	mu     sync.Mutex
	events []driver.Event // made, and free to use
}

const closingBit = 1 << 62

// well is the error of a device that is lost, or that somebody has reset: then
// pinned memory may be gone, and must not be touched.
func (o *openDevice) well() error {
	if _, err := o.Capturing(o.Own()); lost(err) {
		return err
	}
	return nil
}

// hold keeps the driver's device open until letGo; false if it is closing, and
// all that was queued on it by this package has ended.
func (o *openDevice) hold() bool {
	if o.holds.Add(1)&closingBit == 0 {
		return true
	}
	o.letGo()
	return false
}

// letGo undoes hold.
func (o *openDevice) letGo() {
	if o.holds.Add(-1) != closingBit || !o.holds.CompareAndSwap(closingBit, closingBit|finishing) {
		return
	}
	if o.finish() != nil {
		sys := o.port.sys
		sys.lateMu.Lock()
		defer sys.lateMu.Unlock()
		sys.late = append(sys.late, o) // the next Device.Close tries again
	}
}

// finishing keeps what is over from being finished twice, by a hold that was
// refused.
const finishing = closingBit >> 1

// close gives everything back to the driver, or leaves the last of it to whoever
// holds o. Where it fails o is open as before, and close can be called again.
func (o *openDevice) close() error {
	o.holds.Add(closingBit + 1) // with a hold, so that nobody finishes meanwhile
	err := o.stage.shut()
	if err == nil && o.holds.CompareAndSwap(closingBit+1, closingBit|finishing) {
		if err = o.finish(); err == nil {
			return nil
		}
		o.holds.Add(1 - finishing)
	}
	if err != nil {
		o.holds.Add(-closingBit - 1)
		return err
	}
	o.letGo()
	return nil
}

// finish frees the events and closes the driver's device. Nobody holds o, and
// nobody will. It can be called again.
func (o *openDevice) finish() error {
	for len(o.events) > 0 {
		last := len(o.events) - 1
		if err := o.FreeEvent(o.events[last]); err != nil {
			return err
		}
		o.events = o.events[:last]
	}
	return o.Device.Close()
}

// finishLate closes what could not be closed when its last user let go of it.
func (s *system) finishLate() (failed error) {
	s.lateMu.Lock()
	late := s.late
	s.late = nil
	s.lateMu.Unlock()
	for _, o := range late {
		if err := o.finish(); err != nil {
			failed = also(failed, "and", err)
			s.lateMu.Lock()
			s.late = append(s.late, o)
			s.lateMu.Unlock()
		}
	}
	return failed
}

// mark is an event behind all that a stream had been told when it was recorded.
// It holds its device. The zero mark is behind nothing.
type mark struct {
	on *openDevice
	e  driver.Event
}

// mark records an event at the end of a stream; the zero mark where o is closing,
// since nothing is left to wait for. The caller must free it.
func (o *openDevice) mark(s driver.Stream) (mark, error) {
	if !o.hold() {
		return mark{}, nil
	}
	e, err := o.event()
	if err != nil {
		o.letGo()
		return mark{}, err
	}
	m := mark{o, e}
	if err := o.Record(e, s); err != nil {
		m.free()
		return mark{}, err
	}
	return m, nil
}

// event takes an event out of the free ones, or makes one.
func (o *openDevice) event() (e driver.Event, err error) {
	o.mu.Lock()
	if last := len(o.events) - 1; last >= 0 {
		e, o.events = o.events[last], o.events[:last]
	}
	o.mu.Unlock()
	if e == 0 {
		e, err = o.NewEvent(EventBlocking)
	}
	return e, err
}

// recycle makes an event free to use again.
func (o *openDevice) recycle(e driver.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, e)
}

// free gives the event back.
func (m mark) free() {
	if m.on != nil {
		m.on.recycle(m.e)
		m.on.letGo()
	}
}

// wait waits for the work, asleep, and frees the mark.
func (m mark) wait() error {
	if m.on == nil {
		return nil
	}
	defer m.free()
	return m.on.SyncEvent(m.e)
}

// passed says whether the work has ended, by itself or with its device.
func (m mark) passed() (bool, error) {
	if m.on == nil {
		return true, nil
	}
	done, err := m.on.Done(m.e)
	if lost(err) {
		return true, nil
	}
	return done, err
}

// freeAll frees marks.
func freeAll(marks []mark) {
	for _, m := range marks {
		m.free()
	}
}
