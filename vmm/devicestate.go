package vmm

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// What Devices share, from the outside in:
//
//	process      the address budget, and a driverState for each driver with Devices
//	driverState  all Devices of one driver: which reservation an address lies in
//	deviceState  all Devices on one ordinal: limit, streams, and the openDevice
//	openDevice   the driver's device while it is open: its context, events, staging
//
// The first Device makes what is not there yet; the last one to close takes it away.

// process is the one global: the address budget must hold for the process, and
// devices of one driver must find each other.
var process = func() *processState {
	p := &processState{limit: 1 << 46, drivers: map[driver.Driver]*driverState{}}
	p.mu.At(lock.Process, 0)
	return p
}()

type processState struct {
	mu      lock.Mutex
	drivers map[driver.Driver]*driverState

	limit    uint64 // bytes of addresses
	reserved uint64
}

// SetAddressLimit changes how many bytes of addresses all reservations of this
// process may hold together, and returns the old limit. The default is 2^46, half
// of what the kernel gives a process on x86-64: if addresses run out, Go's own heap
// cannot grow and the process dies. A limit below what is reserved already only
// stops new reservations.
func SetAddressLimit(bytes uint64) (old uint64) {
	process.mu.Lock()
	defer process.mu.Unlock()
	old, process.limit = process.limit, bytes
	return old
}

// takeAddresses counts size against the process's limit.
func takeAddresses(size uint64) error {
	process.mu.Lock()
	defer process.mu.Unlock()
	if left := process.limit - min(process.limit, process.reserved); size > left {
		return fmt.Errorf("%w: %s are left of this process's limit of %s; ask for a smaller Max or see SetAddressLimit",
			ErrAddressSpace, sizeText(left), sizeText(process.limit))
	}
	process.reserved += size
	return nil
}

// giveAddresses undoes takeAddresses.
func giveAddresses(size uint64) {
	process.mu.Lock()
	defer process.mu.Unlock()
	process.reserved -= size
}

// testHooks are set by tests only, before the first use: each turns one guard off, or
// a path on that is otherwise seldom taken.
type testHooks struct {
	noWait      bool // no wait for work before memory is taken away
	noGrantLock bool // EnablePeers, Sleep and Wake do not lock the grants of their ranges
	noWorker    bool // no device goroutine is started
	noNameCheck bool // work on streams that UsedBy has not named is let through
	staging     stagingHooks

	noUnmapping, lateUnmapping bool // Watch.Unmapping is not called, or after the unmap
}

// driverState is one driver and what this process has open on it.
type driverState struct {
	drv      driver.Driver
	hooks    testHooks
	legacy   legacyPairs
	captures captures
	onSync   syncHooks

	devicesOpen   int          // Devices; guarded by process.mu
	refusedCloses refusedCalls // of an openDevice whose last use has ended; Device.Close tries again

	mu           lock.RWMutex
	states       map[int]*deviceState
	reservations []*Reservation // by address
}

// deviceState is one device of a driver, shared by all Devices opened on it.
type deviceState struct {
	// Immutable.
	parent *driverState
	n      int // the ordinal

	// Atomic.
	openDevice    atomic.Pointer[openDevice] // nil before the first need
	released      atomic.Uint64              // bytes of memory that went back to the driver, ever
	pressureUntil atomic.Int64               // no growth ahead until then, in Unix nanoseconds

	closeMu    lock.Mutex // Device.Close alone takes it, and holds it across waits
	pressureMu lock.Mutex // one goroutine at a time looks for memory to release
	openMu     lock.Mutex // held while openDevice changes, and while the driver opens its device

	mu            lock.Mutex
	devices       []*Device
	limit         uint64 // of what this process creates; 0: none
	created       uint64
	pressureHooks []*pressureHook

	streamsMu lock.RWMutex // shared while the driver is asked about them, so that none is freed
	streams   []*Stream    // that this package knows: made here, or by WrapStream
}

// acquireState makes d a user of the state of device n.
func acquireState(drv driver.Driver, n int, d *Device) *deviceState {
	process.mu.Lock()
	defer process.mu.Unlock()
	parent := process.drivers[drv]
	if parent == nil {
		parent = &driverState{drv: drv, states: map[int]*deviceState{}}
		parent.legacy.pairs = map[[2]int]*legacyPair{}
		parent.mu.At(lock.Driver, 0)
		parent.legacy.mu.At(lock.LegacyPairs, 0)
		parent.captures.mu.At(lock.Captures, 0)
		process.drivers[drv] = parent
	}
	parent.devicesOpen++ // before process.mu is released, so that the last Close sees it
	parent.mu.Lock()
	defer parent.mu.Unlock()
	s := parent.states[n]
	if s == nil {
		s = newDeviceState(parent, n)
		parent.states[n] = s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.devices = append(s.devices, d)
	return s
}

func newDeviceState(parent *driverState, n int) *deviceState {
	s := &deviceState{parent: parent, n: n}
	key := uint64(n) // devices are locked by ordinal, if more than one is
	s.closeMu.At(lock.DeviceClose, key)
	s.pressureMu.At(lock.Pressure, key)
	s.openMu.At(lock.Open, key)
	s.mu.At(lock.DeviceState, key)
	s.streamsMu.At(lock.Streams, key)
	return s
}

// releaseState undoes acquireState.
func (s *deviceState) releaseState(d *Device) {
	process.mu.Lock()
	defer process.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.devices = slices.DeleteFunc(s.devices, func(e *Device) bool { return e == d })
	s.pressureHooks = slices.DeleteFunc(s.pressureHooks, func(h *pressureHook) bool { return h.dev == d })
	s.parent.onSync.removeAll(d)
	if len(s.devices) == 0 {
		s.limit = 0
	}
	s.parent.devicesOpen--
	if s.parent.devicesOpen == 0 {
		delete(process.drivers, s.parent.drv)
	}
}

// closeDevice closes the driver's device if d is the only Device left on it. It waits for the device, so it needs closeMu and holds no other lock; a
// Device that is opened meanwhile opens the driver's device anew.
func (s *deviceState) closeDevice(d *Device) error {
	o := s.detachIfLast(d)
	if o == nil {
		return nil
	}
	err := o.close()
	if err != nil {
		d.refusedCalls.add(o.close) // it may be half closed: it is not used again
	}
	return err
}

// detachIfLast takes the driver's device out of use if d is the only Device on it; nil if
// there are others, or none is open.
func (s *deviceState) detachIfLast(d *Device) *openDevice {
	s.openMu.Lock()
	defer s.openMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.devices) != 1 || s.devices[0] != d {
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
	s.mu.Lock()
	users := len(s.devices)
	s.mu.Unlock()
	if users == 0 {
		return nil, fmt.Errorf("%w: device %d", ErrClosed, s.n)
	}
	raw, err := s.parent.drv.Open(s.n)
	if err != nil {
		return nil, err
	}
	o := &openDevice{Device: raw, state: s}
	o.mu.At(lock.OpenDevice, 0)
	o.stage.device, o.stage.hooks = o, &s.parent.hooks.staging
	o.stage.mu.At(lock.Staging, 0)
	s.openDevice.Store(o)
	return o, nil
}

// addStream makes a stream one of those that are asked before a wait.
func (s *deviceState) addStream(st *Stream) {
	s.streamsMu.Lock()
	defer s.streamsMu.Unlock()
	s.streams = append(s.streams, st)
}

// removeStream undoes addStream.
func (s *deviceState) removeStream(st *Stream) {
	s.streamsMu.Lock()
	defer s.streamsMu.Unlock()
	s.streams = slices.DeleteFunc(s.streams, func(e *Stream) bool { return e == st })
}

// notCapturing is ErrCapturing if a stream that is known here is being captured,
// or one that the driver knows to wait for the legacy stream.
func (s *deviceState) notCapturing() error {
	s.streamsMu.RLock()
	defer s.streamsMu.RUnlock()
	o := s.openDevice.Load()
	if o == nil && len(s.streams) > 0 { // of another library
		var err error
		if o, err = s.ensureOpen(); err != nil {
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
	for _, st := range s.streams {
		if err := o.notCapturing(st.queue); err != nil {
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
	i, _ := slices.BinarySearchFunc(s.reservations, r.ptr, byAddress)
	s.reservations = slices.Insert(s.reservations, i, r)
}

// remove undoes add. It must come before the addresses go back to the driver,
// which may hand them out again at once.
func (s *driverState) remove(r *Reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := slices.BinarySearchFunc(s.reservations, r.ptr, byAddress); ok {
		s.reservations = slices.Delete(s.reservations, i, i+1)
	}
}

// find is the reservation that p lies in, or nil.
func (s *driverState) find(p Ptr) *Reservation {
	s.mu.RLock()
	defer s.mu.RUnlock()
	i, ok := slices.BinarySearchFunc(s.reservations, p, byAddress)
	if !ok {
		i--
	}
	if i < 0 || p-s.reservations[i].ptr >= Ptr(s.reservations[i].size) {
		return nil
	}
	return s.reservations[i]
}

// Lookup says whose address p is: the reservation it lies in, on any device of
// the same driver, and the offset in it. Map, Unmap and Close of the
// reservation inside a Range return ErrBusy.
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

// openDevice is a driver's device from the first need of it to the Close of the
// last Device on it, with what ends with it: events and the pinned memory of
// copies. Each use that may outlast that Close, a wait for one of its events for
// instance, retains it; the last one to release it closes the driver's device then.
type openDevice struct {
	driver.Device
	state       *deviceState
	stage       staging
	pinnedCache pinnedCache

	mirrors atomic.Uint64 // bytes of pinned memory that mirrors have

	uses atomic.Int64 // a count, and the two bits below

	mu     lock.Mutex
	events []driver.Event // made, and free to use
}

// The bits of openDevice.uses.
const (
	// The last Device closes: it cannot be retained any more.
	closingBit = 1 << 62
	// finish has begun. A retain that comes too late is released at once, and must not begin
	// it again.
	finishingBit = closingBit >> 1
)

// checkAlive is an error if the device is lost or was reset. Then pinned memory may be freed
// already and must not be touched.
func (o *openDevice) checkAlive() error {
	if _, err := o.Capturing(o.CopyStream()); lost(err) {
		return err
	}
	return nil
}

// retain keeps the driver's device open until release; false if it is closing. Then all that
// this package has queued on it has ended.
func (o *openDevice) retain() bool {
	if o.uses.Add(1)&closingBit == 0 {
		return true
	}
	o.release()
	return false
}

// release undoes retain. The last release after close has begun leaves closingBit alone in
// uses: it then calls finish.
func (o *openDevice) release() {
	if o.uses.Add(-1) != closingBit || !o.uses.CompareAndSwap(closingBit, closingBit|finishingBit) {
		return
	}
	if o.finish() != nil { // the next Device.Close tries again, and says so
		o.state.parent.refusedCloses.add(o.finish)
	}
}

// close closes the driver's device, or leaves that to the last use. After an error o cannot
// be used any more, and close can be called again.
func (o *openDevice) close() error {
	// It retains o itself, so that no release finishes before it knows whether it is alone.
	o.uses.Add(closingBit + 1)
	if !o.uses.CompareAndSwap(closingBit+1, closingBit|finishingBit) {
		o.release()
		return nil
	}
	err := o.finish()
	if err != nil { // neither bit, as before: the next close sets them again
		o.uses.Add(-closingBit - finishingBit)
	}
	return err
}

// finish frees pinned memory and events and closes the driver's device. Nothing uses
// o any more. It can be called again.
func (o *openDevice) finish() error {
	if err := o.stage.close(); err != nil {
		return err
	}
	if err := o.pinnedCache.close(o); err != nil {
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

// refusedCalls are calls by which something is released, and which the driver refused. They
// are tried again later.
type refusedCalls struct {
	mu  sync.Mutex // nothing else is locked while it is held
	all []func() error
}

func (r *refusedCalls) add(again func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, again)
}

// retry calls each once more, and keeps those that are refused again.
func (r *refusedCalls) retry() (failed error) {
	r.mu.Lock()
	all := r.all
	r.all = nil
	r.mu.Unlock()
	for _, again := range all {
		if err := again(); err != nil {
			failed = also(failed, "and", err)
			r.add(again)
		}
	}
	return failed
}

// Fence is an event recorded at the end of a stream's work, as Record returns it, for
// programs that need many. Its event is one of the device's pool: it costs no allocation,
// does not record where it was made, and is not listed as open. When the Device closes, its work has
// ended. The zero Fence is done. Safe for concurrent use, up to Free.
type Fence struct {
	on *openDevice // whose event it is, retained; nil if there is nothing to wait for
	e  driver.Event
	at point // none for the library's own streams
}

// recordFence records an event at the end of a stream, where at says; the zero one if o is
// closing, since then nothing is left to wait for. The caller must free it.
func (o *openDevice) recordFence(queue driver.Stream, at point) (Fence, error) {
	if !o.retain() {
		return Fence{}, nil
	}
	// A pooled event first: making one is a driver call.
	f := Fence{on: o, at: at}
	o.mu.Lock()
	if last := len(o.events) - 1; last >= 0 {
		f.e, o.events = o.events[last], o.events[:last]
	}
	o.mu.Unlock()
	if f.e == 0 {
		var err error
		if f.e, err = o.NewEvent(EventBlocking); err != nil {
			o.release()
			return Fence{}, err
		}
	}
	if err := o.Record(f.e, queue); err != nil {
		f.Free()
		return Fence{}, err
	}
	return f, nil
}

// Free gives the Fence up. It must be called once.
func (f Fence) Free() {
	if f.on == nil {
		return
	}
	f.on.mu.Lock()
	f.on.events = append(f.on.events, f.e)
	f.on.mu.Unlock()
	f.on.release()
}

// Sync waits until the work has ended.
func (f Fence) Sync() error {
	if f.on == nil {
		return nil
	}
	err := f.sync()
	if err == nil {
		f.on.state.parent.runSyncHooks()
	}
	return err
}

// sync is Sync without the functions of OnSync.
func (f Fence) sync() error {
	if f.on == nil {
		return nil
	}
	err := f.on.SyncEvent(f.e)
	if err == nil {
		f.at.finish()
	}
	return err
}

// waitAndFree waits for the work, asleep, and frees the event.
func (f Fence) waitAndFree() error {
	defer f.Free()
	return f.sync()
}

// Done says whether the work has ended, by itself or with its device, without waiting.
func (f Fence) Done() (bool, error) {
	if f.on == nil {
		return true, nil
	}
	done, err := f.on.Done(f.e)
	switch {
	case err != nil && lost(err):
		return true, nil
	case err == nil && done:
		f.at.finish()
	}
	return done, err
}

// freeFences frees events.
func freeFences(all []Fence) {
	for _, f := range all {
		f.Free()
	}
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
	f, err := o.recordFence(o.CopyStream(), point{})
	if err == nil {
		err = f.waitAndFree()
	}
	if err != nil && !lost(err) && o.retain() { // an event cannot tell, so the stream has to
		err = o.SyncStream(o.CopyStream())
		o.release()
	}
	if err == nil && o.retain() {
		err = o.stage.syncMaybeBusy()
		o.release()
	}
	return err
}

// pinned is how many bytes of host memory are pinned for the device: for copies, mirrors and Pinned.
func (o *openDevice) pinned() uint64 {
	return o.stage.pinned() + o.mirrors.Load() + o.pinnedCache.size.Load()
}
