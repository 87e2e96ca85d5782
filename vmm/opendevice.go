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

// finishing is set before finish runs, so that a refused hold that ends meanwhile
// does not run it again.
const (
	closingBit = 1 << 62
	finishing  = closingBit >> 1
)

// well is nil unless the device is lost or was reset. Then pinned memory may be gone
// and must not be touched.
func (o *openDevice) well() error {
	if _, err := o.Capturing(o.CopyStream()); lost(err) {
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

// close gives everything back to the driver, or leaves that to the last hold. Where
// it fails, nobody may work with o any more, and close can be called again.
func (o *openDevice) close() error {
	o.holds.Add(closingBit + 1) // with a hold, so that nobody finishes meanwhile
	if !o.holds.CompareAndSwap(closingBit+1, closingBit|finishing) {
		o.letGo()
		return nil
	}
	err := o.finish()
	if err != nil {
		o.holds.Add(-closingBit - finishing)
	}
	return err
}

// finish frees pinned memory and events and closes the driver's device. Nobody
// holds o, and nobody will. It can be called again.
func (o *openDevice) finish() error {
	if err := o.stage.shut(); err != nil {
		return err
	}
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

// mark is an event recorded at the end of a stream. It keeps its openDevice open.
// There is nothing to wait for behind the zero mark.
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
