package vmm

import (
	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
	"github.com/cuvmm/cuvmm/vmm/internal/slots"
)

// SetNoWait turns off every wait of the device's driver: the negative control of the
// tests of waits.
func SetNoWait(d *Device, off bool) { d.state.parent.hooks.noWait = off }

// SetNoAccessCheck lets work use memory whatever access its device has: the negative control of
// the test of access in doubt.
func SetNoAccessCheck(d *Device, off bool) { d.state.parent.hooks.noAccessCheck = off }

// SetNoGrantLock makes EnablePeers, Sleep and Wake not lock the grants of their ranges: the
// negative control of the test that no other call changes them meanwhile.
func SetNoGrantLock(d *Device, off bool) { d.state.parent.hooks.noGrantLock = off }

// SetNoPressureGuard has functions of OnPressure called for what they need memory for themselves:
// the negative control of the test that they are not.
func SetNoPressureGuard(d *Device, off bool) { d.state.parent.hooks.noPressureGuard = off }

// SetNoWorker keeps the background goroutine of the driver's devices from starting. Drain
// does its work on retired memory, if the time for it has come.
func SetNoWorker(d *Device, off bool) { d.state.parent.hooks.noWorker = off }

// Drain unmaps retired memory that waits no longer.
func Drain(d *Device) error {
	err := d.state.syncFills()
	if err == nil {
		_, err = sweepRetired(d, waitForLock)
	}
	return err
}

// Named is how many streams the range's UsedBy has named, where no AppendOn is pending.
func Named(g *Range) int {
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	return len(g.r.users.Streams())
}

// Staging says how a test has copies staged. Its zero value is off.
type Staging struct {
	Block    int  // bytes of a block; 0 is the library's own
	Lanes    int  // 0 is as many as there are processors
	Careless bool // the negative control: blocks are used again before they are free
}

// SetStaging makes all copies of the driver's devices go through pinned memory, also where
// the CPU can address the device's. If s is nil, none does. It is called before the first
// copy.
func SetStaging(d *Device, to *Staging) {
	o := &d.state.parent.hooks.staging
	o.Off = to == nil
	if to != nil {
		o.Forced, o.Block, o.Lanes, o.Careless = true, uint64(to.Block), to.Lanes, to.Careless
	}
}

// Lanes returns how many lanes the device has, and how many of them are broken.
func Lanes(d *Device) (all, broken int) {
	o := d.state.openDevice.Load()
	if o == nil {
		return 0, 0
	}
	return o.stage.Count()
}

// IdleLane returns the stream of one of the device's lanes.
func IdleLane(d *Device) driver.Stream {
	return d.state.openDevice.Load().stage.IdleQueue()
}

// Closing reports whether a Close of the stream is waiting for calls under way.
func Closing(s *Stream) bool {
	if s.mu.TryRLock() {
		defer s.mu.RUnlock()
		return s.closing.Load()
	}
	return true
}

// Working reports whether the device's goroutine runs, and how many ranges are on its list.
func Working(d *Device) (running bool, wanted int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.worker.running, len(d.worker.queue)
}

// PretendPrivate makes the library take the memory of a segment for private: the negative
// control of contract 6.
func PretendPrivate(s Segment) { s.mem.Cacheable.Store(true) }

// SetForeign makes the library take the stream for one of another context.
func SetForeign(s *Stream, wrapped bool) { s.order.Wrapped = wrapped }

// HostCopy says how many bytes of host memory the range has for its contents.
func HostCopy(g *Range) int {
	g.r.closeMu.Lock()
	defer g.r.closeMu.Unlock()
	return len(g.hostCopy.Mem)
}

// Retirements says how many clips of the range are not finished.
func Retirements(g *Range) int {
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	return len(g.r.retirements)
}

// SetNoNameCheck lets work through on streams that UsedBy has not named: the negative
// control of the test that it is refused.
func SetNoNameCheck(d *Device, off bool) { d.state.parent.hooks.noNameCheck = off }

// SetNoAllocationCheck lets graphs be launched that use memory of the driver's which was freed: the
// negative control of the tests that they are refused.
func SetNoAllocationCheck(d *Device, off bool) { d.state.parent.hooks.noAllocationCheck = off }

// Awaited reports whether a Retire waits for launches of graphs that use the memory.
func Awaited(x door.Allocation) bool {
	a := x.(*allocation)
	if !a.mu.TryRLock() {
		return true
	}
	a.mu.RUnlock()
	return false
}

// SetNoUnmapping keeps Watch.Unmapping of the device's driver from being called before an
// unmap, and SetLateUnmapping calls it after: the negative controls of the tests of Watch.
func SetNoUnmapping(d *Device, off bool)  { d.state.parent.hooks.noUnmapping = off }
func SetLateUnmapping(d *Device, on bool) { d.state.parent.hooks.lateUnmapping = on }

// AtRest calls f with what is mapped with access in a reservation or range, retiring memory
// included. Nothing is mapped or unmapped meanwhile.
func AtRest(m Memory, f func(mapped map[Ptr]uint64)) {
	r := m.Reservation()
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	all := map[Ptr]uint64{}
	for _, m := range r.mappings() {
		if m.State != slots.Mapped.String() {
			all[r.ptr+Ptr(m.Off)] = m.Size
		}
	}
	f(all)
}

// SetGateOff lets calls meet that end the process on a card: the negative control of the tests
// of captures. Before the device's first use.
func SetGateOff(d *Device, off bool) { d.state.parent.world.Off = off }

// WaitWithLock waits for the range's work with a lock that must not be held meanwhile: the
// negative control of the check.
func WaitWithLock(g *Range) error {
	g.growMu.Lock()
	defer g.growMu.Unlock()
	return g.r.waitForWork()
}

// LockKey is the place of the range's locks among those of other ranges.
func LockKey(g *Range) uint64 { return g.r.id }

// HoldCounters locks the device's counters until release.
func HoldCounters(d *Device) (release func()) {
	d.counters.Lock()
	return d.counters.Unlock
}

// Fence is one of package pool.
type Fence = order.Fence

func (s *Stream) Fence() (Fence, error)   { return forPool{}.Fence(s) }
func (s *Stream) WaitFence(f Fence) error { return forPool{}.WaitFence(s, f) }
func SyncFence(s *Stream, f Fence) error  { return forPool{}.SyncFence(s, f) }

// SetSavedAtOnce sets after how many bytes Sleep says that they were written.
func SetSavedAtOnce(n uint64) (old uint64) {
	old, savedAtOnce = savedAtOnce, n
	return old
}
