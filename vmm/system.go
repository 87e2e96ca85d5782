package vmm

import (
	"cmp"
	"fmt"
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
	systems map[driver.Driver]*system

	addresses sync.Mutex
	limit     uint64
	reserved  uint64
}{limit: 1 << 46, systems: map[driver.Driver]*system{}}

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
type system struct {
	drv     driver.Driver
	noFence bool // tests only: the negative control of every fence
	noTold  bool // tests only: an undo does not look who was told since

	users int // devices; guarded by process.mu

	legacy legacyPairs

	mu    sync.RWMutex
	ports map[int]*port
	spans []*Reservation // by address
}

// port is one device of a driver, shared by all Devices opened on it: one
// context, one copy stream, pinned memory for copies, and every stream this
// package knows.
type port struct {
	sys *system
	n   int
	raw atomic.Pointer[rawDevice]

	// closer is held while a Device leaves: if it is the last it stays that.
	closer sync.Mutex

	mu      sync.Mutex
	devices []*Device
	streams map[*Stream]struct{}
	events  []driver.Event // made and free to use; there is no undo to fail
	limit   uint64         // of what this process creates; 0: none
	created uint64

	stage staging
}

// rawDevice boxes the interface so that it can be loaded atomically.
type rawDevice struct{ driver.Device }

// join makes d a user of the port of device n.
func join(drv driver.Driver, n int, d *Device) *port {
	process.mu.Lock()
	defer process.mu.Unlock()
	sys := process.systems[drv]
	if sys == nil {
		sys = &system{drv: drv, ports: map[int]*port{}}
		process.systems[drv] = sys
	}
	sys.users++
	sys.mu.Lock()
	defer sys.mu.Unlock()
	p := sys.ports[n]
	if p == nil {
		p = &port{sys: sys, n: n, streams: map[*Stream]struct{}{}}
		p.stage.port = p
		sys.ports[n] = p
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = append(p.devices, d)
	return p
}

// leave undoes join; the last one frees the events and closes the context.
// Where that fails nobody has left.
func (p *port) leave(d *Device) error {
	process.mu.Lock()
	defer process.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.devices) == 1 {
		if err := p.shut(); err != nil {
			return err
		}
	}
	p.devices = slices.DeleteFunc(p.devices, func(e *Device) bool { return e == d })
	if len(p.devices) == 0 {
		p.limit = 0
	}
	p.sys.users--
	if p.sys.users == 0 {
		delete(process.systems, p.sys.drv)
	}
	return nil
}

// unmark takes the port's events off what retires on other Devices, if last is
// the port's last one and its context is about to close.
func (p *port) unmark(last *Device) error {
	p.mu.Lock()
	alone := len(p.devices) == 1 && p.devices[0] == last
	p.mu.Unlock()
	if !alone {
		return nil
	}
	var all []*Device
	p.sys.mu.RLock()
	for _, q := range p.sys.ports {
		q.mu.Lock()
		all = append(all, q.devices...)
		q.mu.Unlock()
	}
	p.sys.mu.RUnlock()
	for _, d := range all {
		if err := d.unmark(p); err != nil {
			return err
		}
	}
	return nil
}

// shut gives back what the port has of the driver. It needs p.mu.
func (p *port) shut() error {
	raw := p.raw.Load()
	if raw == nil {
		return nil
	}
	if err := p.stage.shut(raw.Device); err != nil {
		return err
	}
	for len(p.events) > 0 {
		last := len(p.events) - 1
		if err := raw.FreeEvent(p.events[last]); err != nil {
			return err
		}
		p.events = p.events[:last]
	}
	if err := raw.Close(); err != nil {
		return err
	}
	p.raw.Store(nil)
	return nil
}

// mark records an event at the stream's end of now. The caller gives it to recycle.
func (p *port) mark(dev driver.Device, s driver.Stream) (e driver.Event, err error) {
	p.mu.Lock()
	if last := len(p.events) - 1; last >= 0 {
		e, p.events = p.events[last], p.events[:last]
	}
	p.mu.Unlock()
	if e == 0 {
		if e, err = dev.NewEvent(EventBlocking); err != nil {
			return 0, err
		}
	}
	if err := dev.Record(e, s); err != nil {
		p.recycle(e)
		return 0, err
	}
	return e, nil
}

// recycle takes an event back that nobody waits for any more.
func (p *port) recycle(e driver.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, e)
}

// settle waits for the event, asleep.
func (p *port) settle(dev driver.Device, e driver.Event) error {
	defer p.recycle(e)
	return dev.SyncEvent(e)
}

// device opens the driver's device at the first call that needs one.
func (p *port) device() (driver.Device, error) {
	if raw := p.raw.Load(); raw != nil {
		return raw.Device, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if raw := p.raw.Load(); raw != nil {
		return raw.Device, nil
	}
	if len(p.devices) == 0 {
		return nil, fmt.Errorf("%w: device %d", ErrClosed, p.n)
	}
	dev, err := p.sys.drv.Open(p.n)
	if err != nil {
		return nil, err
	}
	p.raw.Store(&rawDevice{dev})
	return dev, nil
}

// known copies the streams this package knows on the port.
func (p *port) known(buf []*Stream) []*Stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.streams {
		buf = append(buf, s)
	}
	return buf
}

func byAddress(r *Reservation, p Ptr) int { return cmp.Compare(r.ptr, p) }

// add makes r findable by its addresses.
func (s *system) add(r *Reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, _ := slices.BinarySearchFunc(s.spans, r.ptr, byAddress)
	s.spans = slices.Insert(s.spans, i, r)
}

// remove undoes add. It must come before the addresses go back to the driver,
// which may hand them out again at once.
func (s *system) remove(r *Reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := slices.BinarySearchFunc(s.spans, r.ptr, byAddress); ok {
		s.spans = slices.Delete(s.spans, i, i+1)
	}
}

// find gives the reservation that p lies in, or nil.
func (s *system) find(p Ptr) *Reservation {
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
