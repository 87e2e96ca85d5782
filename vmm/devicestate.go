package vmm

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// process is what all devices of this process share. It is the one global: the
// address budget must hold for the process, and devices of one driver must find
// each other.
var process = struct {
	mu      sync.Mutex // before any other lock of a system or port
	systems map[driver.Driver]*driverState

	addresses sync.Mutex
	limit     uint64
	reserved  uint64
}{limit: 1 << 46, systems: map[driver.Driver]*driverState{}}

// SetAddressLimit changes how many bytes of addresses all reservations of this
// process may hold together, and gives the old limit. The default is 2^46, half
// of what the kernel gives a process on x86-64: where addresses run out, Go's
// own heap cannot grow and the process dies. A limit below what is reserved
// already only stops new reservations.
func SetAddressLimit(bytes uint64) (old uint64) {
	process.addresses.Lock()
	defer process.addresses.Unlock()
	old, process.limit = process.limit, bytes
	return old
}

// takeAddresses counts size against the process's limit.
func takeAddresses(size uint64) error {
	process.addresses.Lock()
	defer process.addresses.Unlock()
	if left := process.limit - min(process.limit, process.reserved); size > left {
		return fmt.Errorf("%w: %s are left of this process's limit of %s; ask for a smaller Max or see SetAddressLimit",
			ErrAddressSpace, sizeText(left), sizeText(process.limit))
	}
	process.reserved += size
	return nil
}

// giveAddresses undoes takeAddresses.
func giveAddresses(size uint64) {
	process.addresses.Lock()
	defer process.addresses.Unlock()
	process.reserved -= size
}

// system is one driver and what this process has open on it.
type driverState struct {
	drv     driver.Driver
	noFence bool // tests only: the negative control of every fence

	noGrantLock bool // tests only: the negative control of lockGrants

	users int // devices; guarded by process.mu

	legacy legacyPairs

	mu      sync.RWMutex
	devices map[int]*deviceState
	spans   []*Reservation // by address

	unfinishedMu sync.Mutex
	unfinished   []*openDevice // could not be closed when its last user let go of it
}

// port is one device of a driver, shared by all Devices opened on it: what of
// it is open, and every stream this package knows.
type deviceState struct {
	parent *driverState
	n      int
	open   atomic.Pointer[openDevice] // nil before the first need

	closeMu sync.Mutex // Device.Close alone takes it, and holds it across waits
	openMu  sync.Mutex // held while open changes, and while the driver opens its device

	mu      sync.Mutex
	devices []*Device
	limit   uint64 // of what this process creates; 0: none
	created uint64

	streamsMu sync.RWMutex // shared while they are asked, so that none is freed
	streams   []*Stream    // that this package knows; each knows its index

	pressureMu sync.Mutex    // one at a time looks for memory to give back
	released   atomic.Uint64 // bytes of memory that went back, ever

	pressureUntil atomic.Int64 // look-ahead rests until then, in Unix nanoseconds

	staging stagingOptions
}

// join makes d a user of the port of device n.
func acquireState(drv driver.Driver, n int, d *Device) *deviceState {
	process.mu.Lock()
	defer process.mu.Unlock()
	sys := process.systems[drv]
	if sys == nil {
		sys = &driverState{drv: drv, devices: map[int]*deviceState{}}
		process.systems[drv] = sys
	}
	sys.users++
	sys.mu.Lock()
	defer sys.mu.Unlock()
	p := sys.devices[n]
	if p == nil {
		p = &deviceState{parent: sys, n: n}
		sys.devices[n] = p
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = append(p.devices, d)
	return p
}

// leave undoes join.
func (p *deviceState) releaseState(d *Device) {
	process.mu.Lock()
	defer process.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = slices.DeleteFunc(p.devices, func(e *Device) bool { return e == d })
	if len(p.devices) == 0 {
		p.limit = 0
	}
	p.parent.users--
	if p.parent.users == 0 {
		delete(process.systems, p.parent.drv)
	}
}

// shut closes what is open of the driver's device if d is the only Device left
// on it. It holds no lock but port.closer, since it waits for the device; a
// Device that is opened meanwhile opens the driver's device anew.
func (p *deviceState) closeDevice(d *Device) error {
	o := p.detachOpen(d)
	if o == nil {
		return nil
	}
	err := o.close()
	if err != nil {
		d.deferRelease(o.close) // it may be half closed: nobody gets it again
	}
	return err
}

// takeOpen takes what is open away from those who come, if d is the only Device.
func (p *deviceState) detachOpen(d *Device) *openDevice {
	p.openMu.Lock()
	defer p.openMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.devices) != 1 || p.devices[0] != d {
		return nil
	}
	return p.open.Swap(nil)
}

// device opens the driver's device at the first call that needs one.
func (p *deviceState) ensureOpen() (*openDevice, error) {
	if o := p.open.Load(); o != nil {
		return o, nil
	}
	p.openMu.Lock()
	defer p.openMu.Unlock()
	if o := p.open.Load(); o != nil {
		return o, nil
	}
	p.mu.Lock()
	users := len(p.devices)
	p.mu.Unlock()
	if users == 0 {
		return nil, fmt.Errorf("%w: device %d", ErrClosed, p.n)
	}
	dev, err := p.parent.drv.Open(p.n)
	if err != nil {
		return nil, err
	}
	o := &openDevice{Device: dev, state: p}
	o.stage.device = o
	p.open.Store(o)
	return o, nil
}

// learn makes s one of the streams that are asked before a wait.
func (p *deviceState) addStream(s *Stream) {
	p.streamsMu.Lock()
	defer p.streamsMu.Unlock()
	s.index = len(p.streams)
	p.streams = append(p.streams, s)
}

// unlearn undoes learn.
func (p *deviceState) removeStream(s *Stream) {
	p.streamsMu.Lock()
	defer p.streamsMu.Unlock()
	last := len(p.streams) - 1
	if s.index > last || p.streams[s.index] != s {
		return
	}
	p.streams[s.index] = p.streams[last]
	p.streams[s.index].index = s.index
	p.streams[last] = nil
	p.streams = p.streams[:last]
}

// notCapturing is ErrCapturing if a stream that is known here is being captured,
// or one that the driver knows to wait for the legacy stream.
func (p *deviceState) notCapturing() error {
	p.streamsMu.RLock()
	defer p.streamsMu.RUnlock()
	o := p.open.Load()
	if o == nil && len(p.streams) > 0 { // of another library
		var err error
		if o, err = p.ensureOpen(); err != nil {
			return err
		}
	}
	if o == nil || !o.retain() {
		return nil
	}
	defer o.release()
	if err := o.notCapturing(0); err != nil {
		return err
	}
	for _, s := range p.streams {
		if err := o.notCapturing(s.raw); err != nil {
			return err
		}
	}
	return nil
}

func byAddress(r *Reservation, p Ptr) int { return cmp.Compare(r.ptr, p) }

// add makes r findable by its addresses.
func (s *driverState) add(r *Reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, _ := slices.BinarySearchFunc(s.spans, r.ptr, byAddress)
	s.spans = slices.Insert(s.spans, i, r)
}

// remove undoes add. It must come before the addresses go back to the driver,
// which may hand them out again at once.
func (s *driverState) remove(r *Reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := slices.BinarySearchFunc(s.spans, r.ptr, byAddress); ok {
		s.spans = slices.Delete(s.spans, i, i+1)
	}
}

// find gives the reservation that p lies in, or nil.
func (s *driverState) find(p Ptr) *Reservation {
	s.mu.RLock()
	defer s.mu.RUnlock()
	i, ok := slices.BinarySearchFunc(s.spans, p, byAddress)
	if !ok {
		i--
	}
	if i < 0 || p-s.spans[i].ptr >= Ptr(s.spans[i].size) {
		return nil
	}
	return s.spans[i]
}

// openDevice is a driver's device from the first need of it to the Close of the
// last Device on it, with what ends with it: events and the pinned memory of
// copies. Whoever waits for one of its events holds it. A hold outlives Close:
// the last one to be given up closes the driver's device then.
type openDevice struct {
	driver.Device
	state *deviceState
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
func (o *openDevice) checkAlive() error {
	if _, err := o.Capturing(o.CopyStream()); lost(err) {
		return err
	}
	return nil
}

// hold keeps the driver's device open until letGo; false if it is closing, and
// all that was queued on it by this package has ended.
func (o *openDevice) retain() bool {
	if o.holds.Add(1)&closingBit == 0 {
		return true
	}
	o.release()
	return false
}

// letGo undoes hold.
func (o *openDevice) release() {
	if o.holds.Add(-1) != closingBit || !o.holds.CompareAndSwap(closingBit, closingBit|finishing) {
		return
	}
	if o.finish() != nil {
		sys := o.state.parent
		sys.unfinishedMu.Lock()
		defer sys.unfinishedMu.Unlock()
		sys.unfinished = append(sys.unfinished, o) // the next Device.Close tries again
	}
}

// close gives everything back to the driver, or leaves that to the last hold. Where
// it fails, nobody may work with o any more, and close can be called again.
func (o *openDevice) close() error {
	o.holds.Add(closingBit + 1) // with a hold, so that nobody finishes meanwhile
	if !o.holds.CompareAndSwap(closingBit+1, closingBit|finishing) {
		o.release()
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
func (s *driverState) closeUnfinished() (failed error) {
	s.unfinishedMu.Lock()
	late := s.unfinished
	s.unfinished = nil
	s.unfinishedMu.Unlock()
	for _, o := range late {
		if err := o.finish(); err != nil {
			failed = also(failed, "and", err)
			s.unfinishedMu.Lock()
			s.unfinished = append(s.unfinished, o)
			s.unfinishedMu.Unlock()
		}
	}
	return failed
}

// mark is an event recorded at the end of a stream. It keeps its openDevice open.
// There is nothing to wait for behind the zero mark.
type fenceEvent struct {
	on *openDevice
	e  driver.Event
}

// mark records an event at the end of a stream; the zero mark where o is closing,
// since nothing is left to wait for. The caller must free it.
func (o *openDevice) recordFence(s driver.Stream) (fenceEvent, error) {
	if !o.retain() {
		return fenceEvent{}, nil
	}
	e, err := o.event()
	if err != nil {
		o.release()
		return fenceEvent{}, err
	}
	m := fenceEvent{o, e}
	if err := o.Record(e, s); err != nil {
		m.free()
		return fenceEvent{}, err
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
func (m fenceEvent) free() {
	if m.on != nil {
		m.on.recycle(m.e)
		m.on.release()
	}
}

// wait waits for the work, asleep, and frees the mark.
func (m fenceEvent) wait() error {
	if m.on == nil {
		return nil
	}
	defer m.free()
	return m.on.SyncEvent(m.e)
}

// passed says whether the work has ended, by itself or with its device.
func (m fenceEvent) done() (bool, error) {
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
func freeFences(marks []fenceEvent) {
	for _, m := range marks {
		m.free()
	}
}

// SetLimit bounds how many bytes of memory this process creates on the device,
// whatever the number of Devices opened on it; 0, the default, is no bound. It
// gives the old limit. What would go beyond it is ErrOutOfMemory, after kept
// memory has been given back. A limit below what there is already only stops
// growth. Imported memory does not count; memory created here to live elsewhere
// does. The limit lasts until the last Device on it closes; on a closed Device
// nothing changes.
func (d *Device) SetLimit(bytes uint64) (old uint64) {
	if d == nil {
		return 0
	}
	d.mu.Lock() // a Device that is closed limits nobody
	defer d.mu.Unlock()
	p := d.state
	p.mu.Lock()
	defer p.mu.Unlock()
	if old = p.limit; d.liveLocked() == nil {
		p.limit = bytes
	}
	return old
}

// underLimit is how much may still be created if one part of so many of the limit
// is to be left.
func (p *deviceState) underLimit(parts uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limit == 0 {
		return math.MaxUint64
	}
	most := p.limit - p.limit/parts
	return most - min(most, p.created)
}

// charge counts memory that is about to be created against the limit.
func (p *deviceState) charge(size uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := p.limit - min(p.limit, p.created); p.limit > 0 && size > left {
		return fmt.Errorf("%w: %s are left of this process's limit of %s", ErrOutOfMemory, sizeText(left), sizeText(p.limit))
	}
	p.created += size
	return nil
}

// discharge undoes charge.
func (p *deviceState) discharge(size uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.created -= size
}
