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

	noGrantLock bool // tests only: the negative control of lockGrants

	users int // devices; guarded by process.mu

	legacy legacyPairs

	mu    sync.RWMutex
	ports map[int]*port
	spans []*Reservation // by address

	lateMu sync.Mutex
	late   []*openDevice // could not be closed when its last user let go of it
}

// port is one device of a driver, shared by all Devices opened on it: what of
// it is open, and every stream this package knows.
type port struct {
	sys  *system
	n    int
	open atomic.Pointer[openDevice] // nil before the first need

	closer  sync.Mutex // Device.Close alone takes it, and holds it across waits
	opening sync.Mutex // held while open changes, and while the driver opens its device

	mu      sync.Mutex
	devices []*Device
	limit   uint64 // of what this process creates; 0: none
	created uint64

	streamsMu sync.RWMutex // shared while they are asked, so that none is freed
	streams   []*Stream    // that this package knows; each knows its index

	relieving sync.Mutex    // one at a time looks for memory to give back
	released  atomic.Uint64 // bytes of memory that went back, ever

	shortUntil atomic.Int64 // look-ahead rests until then, in Unix nanoseconds

	staging stagingOptions
}

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
		p = &port{sys: sys, n: n}
		sys.ports[n] = p
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = append(p.devices, d)
	return p
}

// leave undoes join.
func (p *port) leave(d *Device) {
	process.mu.Lock()
	defer process.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = slices.DeleteFunc(p.devices, func(e *Device) bool { return e == d })
	if len(p.devices) == 0 {
		p.limit = 0
	}
	p.sys.users--
	if p.sys.users == 0 {
		delete(process.systems, p.sys.drv)
	}
}

// shut closes what is open of the driver's device if d is the only Device left
// on it. It holds no lock but port.closer, since it waits for the device; a
// Device that is opened meanwhile opens the driver's device anew.
func (p *port) shut(d *Device) error {
	o := p.takeOpen(d)
	if o == nil {
		return nil
	}
	err := o.close()
	if err != nil {
		d.strand(o.close) // it may be half closed: nobody gets it again
	}
	return err
}

// takeOpen takes what is open away from those who come, if d is the only Device.
func (p *port) takeOpen(d *Device) *openDevice {
	p.opening.Lock()
	defer p.opening.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.devices) != 1 || p.devices[0] != d {
		return nil
	}
	return p.open.Swap(nil)
}

// device opens the driver's device at the first call that needs one.
func (p *port) device() (*openDevice, error) {
	if o := p.open.Load(); o != nil {
		return o, nil
	}
	p.opening.Lock()
	defer p.opening.Unlock()
	if o := p.open.Load(); o != nil {
		return o, nil
	}
	p.mu.Lock()
	users := len(p.devices)
	p.mu.Unlock()
	if users == 0 {
		return nil, fmt.Errorf("%w: device %d", ErrClosed, p.n)
	}
	dev, err := p.sys.drv.Open(p.n)
	if err != nil {
		return nil, err
	}
	o := &openDevice{Device: dev, port: p}
	o.stage.on = o
	p.open.Store(o)
	return o, nil
}

// learn makes s one of the streams that are asked before a wait.
func (p *port) learn(s *Stream) {
	p.streamsMu.Lock()
	defer p.streamsMu.Unlock()
	s.index = len(p.streams)
	p.streams = append(p.streams, s)
}

// unlearn undoes learn.
func (p *port) unlearn(s *Stream) {
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
func (p *port) notCapturing() error {
	p.streamsMu.RLock()
	defer p.streamsMu.RUnlock()
	o := p.open.Load()
	if o == nil && len(p.streams) > 0 { // of another library
		var err error
		if o, err = p.device(); err != nil {
			return err
		}
	}
	if o == nil || !o.hold() {
		return nil
	}
	defer o.letGo()
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
