package vmm_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// What is tested here is one operation in the middle of another. A hook stops
// the driver call that matters, or acts inside it.

// stopped is a world whose calls of one name stop until they are let go.
type stopped struct {
	*world
	reached chan struct{} // closed when the first one is there
	let     func()
}

func stopAt(t *testing.T, devices int, name string, dev int) *stopped {
	t.Helper()
	s := &stopped{reached: make(chan struct{})}
	gone := make(chan struct{})
	s.let = sync.OnceFunc(func() { close(gone) })
	once := sync.OnceFunc(func() { close(s.reached) })
	s.world = worldWith(t, devices, func(c drivertest.Call) {
		if slices.Contains(strings.Split(name, "|"), c.Name) && c.Dev == dev {
			once()
			<-gone
		}
	})
	t.Cleanup(s.let)
	return s
}

// during checks that take does not make the call named never before the stopped call has
// ended.
func (s *stopped) during(t *testing.T, work, take func() error, never string) {
	t.Helper()
	worked, taken := make(chan error, 1), make(chan error, 1)
	go func() { worked <- work() }()
	<-s.reached
	s.arm()
	go func() { taken <- take() }()
	for range 1000 {
		runtime.Gosched()
	}
	s.fault.mu.Lock()
	calls := slices.Clone(s.seen)
	s.fault.mu.Unlock()
	require.NotContains(t, calls, never, "while a copy is under way")
	s.let()
	require.NoError(t, <-worked)
	require.NoError(t, <-taken)
	require.Contains(t, s.disarm(), never)
}

func TestClipWaitsForACopyUnderWay(t *testing.T) {
	s := stopAt(t, 1, "CopyOut", 0)
	g := ranged(t, s.world, page)
	require.NoError(t, g.Grow(3*page))
	s.during(t, func() error { return s.devs[0].CopyOut(make([]byte, 1), g.Ptr()) }, g.Clip, "Unmap")
	require.NoError(t, g.Close())
	s.end()
}

func TestCloseWaitsForACopyUnderWay(t *testing.T) {
	s := stopAt(t, 1, "CopyOut", 0)
	g := ranged(t, s.world, page)
	s.during(t, func() error { return s.devs[0].CopyOut(make([]byte, 1), g.Ptr()) }, g.Close, "Unmap")
	s.end()
}

func TestRevokeWaitsForAPeersCopyUnderWay(t *testing.T) {
	s := stopAt(t, 2, "CopyOut", 1)
	g := ranged(t, s.world, page)
	require.NoError(t, g.Grant(vmm.AccessRead, s.devs[1]))
	s.during(t, func() error { return s.devs[1].CopyOut(make([]byte, 1), g.Ptr()) },
		func() error { return g.Revoke(s.devs[1]) }, "SetAccess")
	require.NoError(t, g.Close())
	s.end()
}

// TestNoCopyBeginsDuringARevoke: from the moment Revoke waits, the peer's copies are
// refused, and the owner's are not.
func TestNoCopyBeginsDuringARevoke(t *testing.T) {
	s := stopAt(t, 2, "SyncIfActive|RecordContext", 1)
	g := ranged(t, s.world, page)
	require.NoError(t, g.Grant(vmm.AccessReadWrite, s.devs[1]))
	revoked := make(chan error, 1)
	go func() { revoked <- g.Grant(vmm.AccessRead, s.devs[1]) }()
	<-s.reached
	require.ErrorIs(t, s.devs[1].CopyIn(g.Ptr(), []byte{1}), vmm.ErrBusy)
	require.NoError(t, s.devs[1].CopyOut(make([]byte, 1), g.Ptr()), "reading stays")
	require.NoError(t, s.devs[0].CopyIn(g.Ptr(), []byte{1}))
	s.let()
	require.NoError(t, <-revoked)
	require.ErrorIs(t, s.devs[1].CopyIn(g.Ptr(), []byte{1}), vmm.ErrPermission)
	require.NoError(t, g.Close())
	s.end()
}

// TestAGrantWaitsForARevoke: a grant during Revoke's wait would allow new work, which the
// wait does not cover. So it waits for Revoke.
func TestAGrantWaitsForARevoke(t *testing.T) {
	s := stopAt(t, 2, "SyncIfActive|RecordContext", 1)
	g := ranged(t, s.world, page)
	require.NoError(t, g.Grant(vmm.AccessReadWrite, s.devs[1]))
	s.during(t, func() error { return g.Revoke(s.devs[1]) }, func() error { return g.Grant(vmm.AccessRead, s.devs[1]) }, "SetAccess")
	require.Equal(t, vmm.AccessRead, g.Access(s.devs[1]))
	require.NoError(t, g.Close())
	s.end()
}

// TestUnrecordedAccessIsWaitedFor: a device that kept access because an undo failed is
// waited for, though no grant to it is recorded.
func TestUnrecordedAccessIsWaitedFor(t *testing.T) {
	w := newWorld(t, 2)
	r := holed(t, w)
	w.arm(3, 4) // the second run's SetAccess, and setting the first one back
	require.ErrorIs(t, r.Grant(vmm.AccessReadWrite, w.devs[1]), errInjected)
	w.disarm()
	a, err := w.drv.Access(r.Ptr(), vmm.Location{Kind: vmm.LocationDevice, ID: 1})
	require.NoError(t, err)
	require.Equal(t, vmm.AccessReadWrite, a, "it has access that was not granted")

	s := stream(t, w.devs[1])
	open := work(t, w.devs[1], s.Raw(), r.Ptr())
	w.arm()
	closed := make(chan error, 1)
	go func() { closed <- r.Close() }()
	for !w.waiting(1) {
		runtime.Gosched()
	}
	open()
	require.NoError(t, <-closed)
	require.NoError(t, w.devs[1].Sync())
}

// resettable is a world whose contexts another library may reset.
func resettable(t *testing.T, n int) (w *world, reset func(dev int)) {
	t.Helper()
	drv := host.New(host.Config{Devices: n, Memory: 512 * 512 * page, Granularity: page})
	return worldOf(t, n, drv, nil), func(dev int) {
		t.Helper()
		require.NoError(t, drv.ResetContext(dev))
	}
}

// TestEveryDeviceIsWaitedFor: if one device's context is gone, the other devices are waited
// for all the same.
func TestEveryDeviceIsWaitedFor(t *testing.T) {
	w, reset := resettable(t, 2)
	g := ranged(t, w, page)
	require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[1]))
	reset(0)
	require.ErrorIs(t, raw(t, w.devs[0]).Sync(), vmm.ErrDeviceLost)
	s := stream(t, w.devs[1])
	open := work(t, w.devs[1], s.Raw(), g.Ptr())
	w.arm()
	closed := make(chan error, 1)
	go func() { closed <- g.Close() }()
	for !w.waiting(1) {
		runtime.Gosched()
	}
	open()
	require.NoError(t, <-closed)
	require.NoError(t, w.devs[1].Sync(), "the peer is well")
}

// TestALostDeviceIsALostProcess: with a peer the owner is lost too. Its error says so, and
// its memory can be released.
func TestALostDeviceIsALostProcess(t *testing.T) {
	mayLose(t)
	w := newWorld(t, 2)
	g := ranged(t, w, page)
	require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[1]))
	lose(t, w, w.devs[1])
	_, err := g.ReadAt(make([]byte, page), 0)
	require.ErrorIs(t, err, vmm.ErrDeviceLost)
	require.ErrorIs(t, g.Grow(2*page), vmm.ErrDeviceLost)
	require.ErrorIs(t, g.Close(), vmm.ErrDeviceLost)
	require.NoError(t, w.devs[0].Close())
	require.NoError(t, w.devs[1].Close())
}

// lose makes a device lost, by work of its own, and with it all of its driver.
func lose(t *testing.T, w *world, d *vmm.Device) {
	t.Helper()
	g, err := d.NewRange(vmm.RangeOptions{Max: page})
	require.NoError(t, err)
	require.NoError(t, g.Append([]byte{1}))
	s, err := d.NewStream()
	require.NoError(t, err)
	open := work(t, d, s.Raw(), g.Ptr())
	vmm.SetNoWait(d, true)
	require.NoError(t, g.Close())
	vmm.SetNoWait(d, false)
	open()
	require.ErrorIs(t, d.Sync(), vmm.ErrDeviceLost)
	require.ErrorIs(t, s.Close(), vmm.ErrDeviceLost)
}

// TestOwnerOutlivesALostPeer: if a peer's context is gone, the owner's memory stays usable
// and grows, also after Revoke.
func TestOwnerOutlivesALostPeer(t *testing.T) {
	w, reset := resettable(t, 2)
	g := ranged(t, w, page)
	require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[1]))
	reset(1)
	_, err := g.ReadAt(make([]byte, page), 0)
	require.NoError(t, err)
	require.NoError(t, g.Grow(2*page))
	require.NoError(t, g.Revoke(w.devs[1]))
	require.NoError(t, g.Grow(3*page))
	require.NoError(t, g.Clip())
	require.NoError(t, g.Close())
	require.NoError(t, w.devs[0].Close())
	require.NoError(t, w.devs[1].Close())
}

// TestStreamsAndReservationsDoNotDeadlock: queueing, naming, closing and synchronizing take
// their locks in one order.
func TestStreamsAndReservationsDoNotDeadlock(t *testing.T) {
	for range 30 {
		w := newWorld(t, 1)
		g := ranged(t, w, page)
		s := stream(t, w.devs[0])
		require.NoError(t, g.UsedBy(s))
		var wg sync.WaitGroup
		loop := func(f func() error) {
			wg.Go(func() {
				for range 50 {
					if err := f(); err != nil {
						if !errors.Is(err, vmm.ErrClosed) && !errors.Is(err, vmm.ErrInvalid) {
							t.Error(err) // else the range is closed, and its addresses are free
						}
						return
					}
				}
			})
		}
		loop(func() error { return s.Fill(g.Ptr(), 1, 1, page) })
		loop(func() error { return s.Copy(g.Ptr(), g.Ptr()+100, 50) })
		loop(func() error { return g.UsedBy(s) })
		loop(s.Sync)
		loop(g.Clip)
		wg.Go(func() {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		require.NoError(t, s.Close())
		w.end()
	}
}

// TestUsedByDoesNotWaitForTheStream: naming a stream that is being waited for delays no
// call.
func TestUsedByDoesNotWaitForTheStream(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, page)
	s := stream(t, w.devs[0])
	open := gate(t, w.devs[0], s.Raw())
	w.arm()
	synced := make(chan error, 1)
	go func() { synced <- s.Sync() }()
	for !w.waiting(0) {
		runtime.Gosched()
	}
	require.NoError(t, g.UsedBy(s))
	require.NoError(t, g.Append([]byte{1}))
	open()
	require.NoError(t, <-synced)
	require.NoError(t, g.Close())
}

// TestHoldDuringUnmap: bytes that are being unmapped cannot be held.
func TestHoldDuringUnmap(t *testing.T) {
	w := newWorld(t, 1)
	r := holed(t, w)
	s := stream(t, w.devs[0])
	open := work(t, w.devs[0], s.Raw(), r.Ptr())
	unmapped := make(chan error, 1)
	go func() { unmapped <- r.Unmap(0, 3*page) }()
	for w.devs[0].Stats().Retiring == 0 {
		runtime.Gosched()
	}
	_, err := r.Hold(0, page)
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.ErrorIs(t, r.Unmap(0, 3*page), vmm.ErrBusy)
	open()
	require.NoError(t, <-unmapped)
	require.NoError(t, r.Close())
}

// TestCaptureIsCheckedFirst: nothing is recorded on a stream that is captured.
func TestCaptureIsCheckedFirst(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, page)
	require.NoError(t, g.Grow(3*page))
	s := stream(t, w.devs[0])
	require.NoError(t, g.UsedBy(s))
	end := captured(t, w, s)
	w.arm()
	require.ErrorIs(t, g.Clip(), vmm.ErrCapturing)
	require.NotContains(t, w.disarm(), "Record")
	end()
	require.NoError(t, g.Close())
}

// TestDeviceCloseJoins a close whose caller stopped waiting.
func TestDeviceCloseJoins(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, page)
	other, err := vmm.OpenDriver(w.drv, 0) // it runs the work, and stays open
	require.NoError(t, err)
	s := stream(t, other)
	open := work(t, other, s.Raw(), g.Ptr())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, g.CloseContext(ctx), context.Canceled)
	for w.devs[0].Stats().Retiring == 0 { // the close has not begun yet
		runtime.Gosched()
	}
	_, err = g.Hold(0, 0)
	require.ErrorIs(t, err, vmm.ErrClosed)
	require.ErrorIs(t, g.Append([]byte{1}), vmm.ErrClosed)
	require.ErrorIs(t, g.Grow(page), vmm.ErrClosed)
	require.ErrorIs(t, g.SetLen(0), vmm.ErrClosed)
	closed := make(chan error, 1)
	go func() { closed <- w.devs[0].Close() }()
	open()
	require.NoError(t, <-closed)
	require.Zero(t, w.devs[0].Stats().Reserved)
	require.NoError(t, s.Close())
	require.NoError(t, other.Close())
	w.end()
}

// TestStreamCloseEndsUsedBy: a closed stream is on no list any more.
func TestStreamCloseEndsUsedBy(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, page)
	s := stream(t, w.devs[0])
	require.NoError(t, g.UsedBy(s))
	require.Equal(t, 1, vmm.Named(g))
	require.NoError(t, s.Close())
	require.Zero(t, vmm.Named(g))
	require.ErrorIs(t, g.UsedBy(s), vmm.ErrClosed)
	require.NoError(t, g.Close())
	w.end()
}

// TestMemoryMappedElsewhereKeepsItsDevice open.
func TestMemoryMappedElsewhereKeepsItsDevice(t *testing.T) {
	w := newWorld(t, 2)
	c, err := w.devs[1].Create(page, vmm.Prop{})
	require.NoError(t, err)
	r, err := w.devs[0].Reserve(page, vmm.ReserveOptions{})
	require.NoError(t, err)
	require.NoError(t, r.Map(0, c))
	require.NoError(t, c.Close())
	require.ErrorIs(t, w.devs[1].Close(), vmm.ErrBusy)
	require.NoError(t, r.Close())
	w.end()
}

// TestFailedAllocWaitsForNothing: no work could use the memory.
func TestFailedAllocWaitsForNothing(t *testing.T) {
	w := newWorld(t, 1)
	s := stream(t, w.devs[0])
	open := gate(t, w.devs[0], s.Raw())
	_, err := w.devs[0].Alloc(1 << 40)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.Zero(t, w.devs[0].Stats().Reserved)
	open()
}

// TestGrowthOfManyChunksAllocatesNoList of sizes: they are computed one by one.
func TestGrowthOfManyChunksAllocatesNoList(t *testing.T) {
	w := worldOn(t, 1, host.Config{Memory: 16 * page, Granularity: 4096})
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 1 << 20 * page, Chunk: page})
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.ErrorIs(t, g.Grow(1<<20*page), vmm.ErrOutOfMemory)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(mib))
	require.NoError(t, g.Close())
	w.end()
}

// TestGrowthMeetsSleep that fails, or that Wake ends: the capacity covers the length again.
func TestGrowthMeetsSleep(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, 3*page)
	s := stream(t, w.devs[0])
	require.NoError(t, g.UsedBy(s))
	var over atomic.Bool
	var growers sync.WaitGroup
	for range 3 {
		growers.Go(func() {
			for !over.Load() {
				if err := g.Grow(page); !errors.Is(err, vmm.ErrAsleep) {
					assert.NoError(t, err)
				}
			}
		})
	}
	for range testgate.Effort(50, 500, 500) {
		w.refuse("CopyOut", 1, errInjected)
		assert.ErrorIs(t, vmm.Sleep(vmm.SleepKeep, g), errInjected)
		assert.GreaterOrEqual(t, g.Cap(), g.Len())
		assert.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
		assert.NoError(t, vmm.Wake(g))
		assert.GreaterOrEqual(t, g.Cap(), g.Len())
	}
	over.Store(true)
	growers.Wait()
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestNoGoroutineAfterClose: if Close overtakes a Grow, the Grow does not start it.
func TestNoGoroutineAfterClose(t *testing.T) {
	for range 500 {
		w := newWorld(t, 1)
		d := w.devs[0]
		g := newRange(t, d, vmm.RangeOptions{Max: 64 * page, GrowAhead: 8 * page})
		var growers sync.WaitGroup
		for range 3 {
			growers.Go(func() {
				for g.Grow(page) == nil {
				}
			})
		}
		require.NoError(t, g.Close())
		w.end()
		growers.Wait()
		running, _ := vmm.Working(d)
		require.False(t, running)
	}
}

// TestNothingIsHeldWhileItIsUnmapped by the driver.
func TestNothingIsHeldWhileItIsUnmapped(t *testing.T) {
	s := stopAt(t, 1, "Unmap", -1)
	r := holed(t, s.world)
	end := r.Segments()[0].Size
	done := make(chan error, 1)
	go func() { done <- r.Unmap(0, end) }()
	<-s.reached
	_, err := r.Hold(0, end)
	s.let()
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.NoError(t, <-done)
	require.NoError(t, r.Close())
	s.end()
}
