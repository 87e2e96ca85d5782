package vmm

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/arena"
	"github.com/cuvmm/cuvmm/vmm/internal/bank"
	"github.com/cuvmm/cuvmm/vmm/internal/byaddress"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
	"github.com/cuvmm/cuvmm/vmm/internal/staging"
)

// What Devices share, from the outside in:
//
//	process      the address budget, and a driverState for each driver with Devices
//	driverState  all Devices of one driver: which reservation an address lies in
//	deviceState  all Devices on one ordinal: memory, streams, and the openDevice
//	openDevice   the driver's device while it is open: its context, events, staging
//
// The first Device makes what is not there yet; the last one to close takes it away.

// process is the one global: the address budget must hold for the process, and
// devices of one driver must find each other.
var process = func() *processState {
	p := &processState{limit: defaultAddressLimit, drivers: map[driver.Driver]*driverState{}}
	p.mu.At(lock.Process, 0)
	return p
}()

type processState struct {
	mu      lock.RWMutex
	drivers map[driver.Driver]*driverState

	limit    uint64 // bytes of addresses
	reserved uint64 // of them, by reservations and host memory
	spare    uint64 // of arenas, in no reservation
}

// testHooks are set by tests only, before the first use: each turns one guard off, or
// a path on that is otherwise seldom taken.
type testHooks struct {
	noWait          bool // no wait for work before memory is taken away
	noGrantLock     bool // EnablePeers, Sleep and Wake do not lock the grants of their ranges
	noWorker        bool // no device goroutine is started
	noPressureGuard bool // functions of OnPressure call functions of OnPressure
	noNameCheck     bool // work on streams that UsedBy has not named is let through
	noAccessCheck   bool // so is work of devices with too little access, or access in doubt or changing
	staging         staging.Hooks

	noAllocationCheck bool // graphs are launched whose Allocations were freed

	noUnmapping, lateUnmapping bool // Watch.Unmapping is not called, or after the unmap
}

// driverState is one driver and what this process has open on it.
type driverState struct {
	drv    driver.Driver
	hooks  testHooks
	legacy legacyPairs
	world  *order.World
	onSync syncHooks
	stops  stops

	allocations allocations

	refusedCalls refusedCalls
	arenas       arena.Arenas

	// Guarded by process.mu.
	devicesOpen  int // Devices
	states       map[int]*deviceState
	reservations byaddress.Index[*Reservation]
}

// deviceState is one device of a driver, shared by all Devices opened on it.
type deviceState struct {
	// Immutable.
	parent *driverState
	n      int // the ordinal
	gate   *order.Gate
	bank   *bank.Bank // its memory

	// Atomic.
	openDevice atomic.Pointer[openDevice] // nil before the first need

	openMu lock.Mutex // held while openDevice changes, and while the driver opens its device

	devices []*Device // that have not begun to close the driver's device; guarded by process.mu
}

// Ordinal is the device's number. Package grants tells the driver of it.
func (s *deviceState) Ordinal() int { return s.n }

// acquireState makes d a user of the state of device n, with an account in its bank.
func acquireState(drv driver.Driver, n int, d *Device) {
	process.mu.Lock()
	defer process.mu.Unlock()
	parent := process.drivers[drv]
	if parent == nil {
		parent = &driverState{drv: drv, world: order.NewWorld(), states: map[int]*deviceState{}}
		parent.refusedCalls.all = map[*Device][]func() error{}
		parent.arenas = arena.Arenas{Reserve: drv.Reserve, Free: drv.Free, Budget: arenaBudget{}}
		parent.legacy.pairs = map[[2]int]*legacyPair{}
		parent.legacy.mu.At(lock.LegacyPairs, 0)
		process.drivers[drv] = parent
	}
	parent.devicesOpen++
	s := parent.states[n]
	if s == nil {
		s = newDeviceState(parent, n)
		parent.states[n] = s
	}
	s.devices = append(s.devices, d)
	d.state = s
	d.account = &bank.Account{
		Bank: s.bank, Driver: drv, Location: d.location, Counters: &d.counters, Samples: d.samples, History: &d.history,
		Home: parent.bankAt, Reclaim: func(keep uint64) { d.trim(keep) }, //nolint:errcheck // what the driver refuses is counted as quarantined
	}
	d.account.Add()
}

func newDeviceState(parent *driverState, n int) *deviceState {
	s := &deviceState{parent: parent, n: n, gate: parent.world.NewGate(n), bank: bank.New(n, &parent.hooks.noPressureGuard)}
	key := uint64(n) // devices are locked by ordinal, if more than one is
	s.openMu.At(lock.Open, key)
	return s
}

// releaseState undoes acquireState.
func (s *deviceState) releaseState(d *Device) {
	process.mu.Lock()
	defer process.mu.Unlock()
	d.account.Remove()
	s.parent.onSync.remove(func(h *syncHook) bool { return h.dev == d })
	s.parent.devicesOpen--
	if s.parent.devicesOpen == 0 {
		delete(process.drivers, s.parent.drv)
	}
}

// closeDevice closes the driver's device if d is the last Device on it. It waits for the device, so
// it holds no lock; a Device that is opened meanwhile opens the driver's device anew.
func (s *deviceState) closeDevice(d *Device) error {
	o := s.leave(d)
	if o == nil {
		return nil
	}
	err := o.Close()
	if err != nil {
		s.parent.refusedCalls.add(d, o.Close) // it may be half closed: it is not used again
		process.mu.Lock()
		defer process.mu.Unlock()
		s.devices = append(s.devices, d)
	}
	return err
}

// leave takes d off the list. If it was the last one, it takes the driver's device out of use and
// returns it; nil if there are others, or none is open.
func (s *deviceState) leave(d *Device) *openDevice {
	s.openMu.Lock()
	defer s.openMu.Unlock()
	process.mu.Lock()
	defer process.mu.Unlock()
	s.devices = slices.DeleteFunc(s.devices, func(e *Device) bool { return e == d })
	if len(s.devices) > 0 {
		return nil
	}
	return s.openDevice.Swap(nil)
}

// ensureOpen opens the driver's device at the first call that needs one.
func (s *deviceState) ensureOpen() (*openDevice, error) {
	if o := s.openDevice.Load(); o != nil {
		return o, nil
	}
	s.openMu.Lock()
	defer s.openMu.Unlock()
	if o := s.openDevice.Load(); o != nil {
		return o, nil
	}
	// Once the last Device has closed, nothing would close what is opened now.
	process.mu.Lock()
	users := len(s.devices)
	process.mu.Unlock()
	if users == 0 {
		return nil, fmt.Errorf("%w: device %d", ErrClosed, s.n)
	}
	raw, err := s.parent.drv.Open(s.n)
	if err != nil {
		return nil, err
	}
	o := &openDevice{state: s}
	o.Device = order.NewDevice(raw, s.gate, o.freePinned, func(close func() error) { s.parent.refusedCalls.add(nil, close) })
	o.stage = staging.New(o.Device, s.parent.drv, &s.parent.hooks.staging)
	s.openDevice.Store(o)
	return o, nil
}

// bankAt is the memory at a location, if a device is open there; else nil.
func (s *driverState) bankAt(l Location) *bank.Bank {
	process.mu.RLock()
	defer process.mu.RUnlock()
	if at := s.states[l.ID]; l.Kind == LocationDevice && at != nil {
		return at.bank
	}
	return nil
}

// retained is the driver's device, retained, if it is open or other libraries have streams
// here; else nil.
func (s *deviceState) retained() (*openDevice, error) {
	o := s.openDevice.Load()
	if o == nil {
		var err error
		if len(s.gate.Streams()) > 0 {
			o, err = s.ensureOpen()
		}
		if o == nil {
			return nil, err
		}
	}
	if !o.Retain() {
		return nil, nil //nolint:nilnil // it is closing: nothing runs any more
	}
	return o, nil
}

// notCapturing is ErrCapturing if a stream of the device is being captured, as far as
// order.Device.NoneCaptured tells. It is for calls that a capture does not allow, and that hurt
// none if one begins meanwhile.
func (s *deviceState) notCapturing() error {
	o, err := s.retained()
	if o == nil {
		return err
	}
	defer o.Release()
	return o.NoneCaptured()
}

// contextWait is a wait, that has begun, for all work that a device's context had.
type contextWait struct {
	dev    *deviceState
	f      order.Fence
	theirs bool // another library's context, which this process may not have opened
}

// beginWait begins a wait for all work of the device's context, or returns ErrCapturing.
func (s *deviceState) beginWait() (contextWait, error) {
	o, err := s.retained()
	if o == nil {
		return contextWait{dev: s, theirs: err == nil && s.openDevice.Load() == nil}, err
	}
	defer o.Release()
	release := s.gate.Quiet()
	defer release()
	f, err := o.ContextFence()
	return contextWait{dev: s, f: f}, err
}

// wait waits, once.
func (w contextWait) wait() error {
	if w.theirs {
		return w.dev.gate.Shared(func() error { return w.dev.parent.drv.SyncIfActive(w.dev.n) })
	}
	return w.f.SyncAndFree()
}

// sync waits for all work of the device's context.
func (s *deviceState) sync() error {
	streams := s.gate.Streams()
	ends := make([]order.Point, 0, len(streams))
	for _, st := range streams {
		if st.InContext() {
			ends = append(ends, st.NextPoint())
		}
	}
	w, err := s.beginWait()
	if err == nil {
		err = w.wait()
	}
	if err != nil {
		return err
	}
	for _, p := range ends {
		p.Finish()
	}
	return nil
}

// add makes r findable by its addresses.
func (s *driverState) add(r *Reservation) {
	process.mu.Lock()
	defer process.mu.Unlock()
	s.reservations.Add(r.ptr, r.size, r)
}

// remove undoes add. It must come before the addresses go back to the driver,
// which may hand them out again at once.
func (s *driverState) remove(r *Reservation) {
	process.mu.Lock()
	defer process.mu.Unlock()
	s.reservations.Remove(r.ptr)
}

// find is the reservation that p lies in, or nil.
func (s *driverState) find(p Ptr) *Reservation {
	process.mu.RLock()
	defer process.mu.RUnlock()
	r, _ := s.reservations.Find(p)
	return r
}

// Lookup returns the reservation that p lies in, on any device of the same driver, and the offset in it.
// Map, Unmap and Close of the reservation inside a Range return ErrBusy.
func (d *Device) Lookup(p Ptr) (r *Reservation, off uint64, ok bool) {
	if d == nil || d.state == nil {
		return nil, 0, false
	}
	r = d.state.parent.find(p)
	if r == nil {
		return nil, 0, false
	}
	return r, uint64(p - r.ptr), true
}

// openDevice is a driver's device from the first need of it to the Close of the last Device
// on it, with what ends with it: events and the pinned memory of copies.
type openDevice struct {
	*order.Device
	state       *deviceState
	stage       *staging.Lanes
	pinnedCache pinnedCache

	mirrors atomic.Uint64 // bytes of pinned memory that mirrors have
}

// freePinned frees pinned memory, before the driver's device closes. It can be called again.
func (o *openDevice) freePinned() error {
	if err := o.stage.Close(); errors.Is(err, staging.ErrCopying) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	} else if err != nil {
		return err
	}
	return o.pinnedCache.close(o)
}

// refusedCalls are the calls by which something of a driver is released, and which it refused, by
// the Device whose Trim and Close try them again: nil for what the last use of a driver's device
// left, which any Close tries. A Device that is never closed keeps its own until the driver's last one closes.
type refusedCalls struct {
	mu  sync.Mutex // nothing else is locked while it is held
	all map[*Device][]func() error
}

func (r *refusedCalls) add(d *Device, again func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[d] = append(r.all[d], again)
}

// retry calls each of a Device once more, and keeps those that are refused again.
func (r *refusedCalls) retry(d *Device) (failed error) {
	r.mu.Lock()
	all := r.all[d]
	delete(r.all, d)
	r.mu.Unlock()
	for _, again := range all {
		if err := again(); err != nil {
			failed = errtext.Join(failed, "and", err)
			r.add(d, again)
		}
	}
	return failed
}

// legacyPairs is the pairs of a driver's devices whose peer access to cudaMalloc memory this
// process has enabled; see EnableLegacyPeers.
type legacyPairs struct {
	mu    lock.Mutex // held across the driver's calls, so that they agree with the counts
	pairs map[[2]int]*legacyPair
}

// legacyPair is a pair that is enabled.
type legacyPair struct {
	users  int
	theirs bool // another library enabled it, and may count on it
}

// syncOwn waits for the library's own streams on the device.
func (o *openDevice) syncOwn() error {
	f, err := o.QueueFence(o.CopyStream())
	if err == nil {
		err = f.SyncAndFree()
	}
	if err != nil && !lost(err) && o.Retain() { // an event cannot tell, so the stream has to
		err = o.SyncStream(o.CopyStream())
		o.Release()
	}
	if err == nil && o.Retain() {
		err = o.stage.Sync()
		o.Release()
	}
	return err
}
