package vmm_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// What is tested here is one object that outlives another which it still needs.

// halt stops the first call that match names, from arm on, until let.
type halt struct {
	armed   atomic.Bool
	reached chan struct{}
	let     func()
}

func haltAt(w *world, match func(drivertest.Call) bool) *halt {
	gone := make(chan struct{})
	h := &halt{reached: make(chan struct{}), let: sync.OnceFunc(func() { close(gone) })}
	w.before = func(c drivertest.Call) error {
		if h.armed.Load() && match(c) && h.armed.CompareAndSwap(true, false) {
			close(h.reached)
			<-gone
		}
		return nil
	}
	return h
}

// TestWaitOutlivesADevice: a wait for an event of a device that closes meanwhile. A
// device that has closed counts as waited for, and no event of it is used again.
func TestWaitOutlivesADevice(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T, w *world, g *vmm.Range) (s *vmm.Stream, leave func() error){
		"its stream was named": func(t *testing.T, w *world, g *vmm.Range) (*vmm.Stream, func() error) {
			s := stream(t, w.devs[1])
			return s, s.Close
		},
		"it had access": func(t *testing.T, w *world, g *vmm.Range) (*vmm.Stream, func() error) {
			require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
			raw(t, w.devs[1])
			return stream(t, w.devs[0]), func() error { return g.Revoke(w.devs[1]) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			g := ranged(t, w, 2*page)
			used, leave := begin(t, w, g)
			require.NoError(t, g.UsedBy(used))
			h := haltAt(w, func(c drivertest.Call) bool { return c.Name == "SyncEvent" && c.Dev == 1 })
			h.armed.Store(true)
			read := make(chan error, 1)
			go func() { _, err := g.ReadAt(make([]byte, 1), 0); read <- err }()
			<-h.reached
			require.NoError(t, leave())
			require.NoError(t, w.devs[1].Close())
			h.let()
			require.NoError(t, <-read)

			again, err := vmm.OpenDriver(w.drv, 1)
			require.NoError(t, err)
			s := stream(t, again)
			require.NoError(t, g.UsedBy(s))
			for range 3 {
				_, err := g.ReadAt(make([]byte, 1), 0)
				require.NoError(t, err)
			}
			require.NoError(t, g.Close())
			require.NoError(t, s.Close())
			require.NoError(t, again.Close())
			require.NoError(t, used.Close())
			w.end()
		})
	}
}

// TestQueuedClipOutlivesADevice: clipped memory waits for an event of a device that
// closes before the wait is recorded. The memory is released all the same.
func TestQueuedClipOutlivesADevice(t *testing.T) {
	w := newWorld(t, 2)
	vmm.SetNoWorker(w.devs[0], true)
	g := ranged(t, w, page)
	require.NoError(t, g.Grow(4*page))
	s := stream(t, w.devs[1])
	require.NoError(t, g.UsedBy(s))
	h := haltAt(w, func(c drivertest.Call) bool { return c.Name == "Record" && c.Dev == 0 })
	h.armed.Store(true)
	clip := make(chan error, 1)
	go func() { clip <- g.Clip() }()
	<-h.reached
	require.NoError(t, s.Close())
	require.NoError(t, w.devs[1].Close())
	h.let()
	require.NoError(t, <-clip)
	require.NoError(t, vmm.Drain(w.devs[0]))
	require.Zero(t, g.Stats().Retiring)
	require.NoError(t, g.Close())
	vmm.SetNoWorker(w.devs[0], false)
	w.end()
}

// TestWhatClosesLate is closed by the next Device.Close.
func TestWhatClosesLate(t *testing.T) {
	w := newWorld(t, 2)
	vmm.SetNoWorker(w.devs[0], true)
	g := ranged(t, w, page)
	require.NoError(t, g.Grow(4*page))
	s := stream(t, w.devs[1])
	require.NoError(t, g.UsedBy(s))
	require.NoError(t, g.Clip())
	require.NoError(t, s.Close())
	require.NoError(t, w.devs[1].Close(), "what retires holds its event")
	w.refuse("FreeEvent", 1, errInjected)
	require.NoError(t, vmm.Drain(w.devs[0]))
	require.NoError(t, g.Close())
	vmm.SetNoWorker(w.devs[0], false)
	w.end()
}

// TestStreamsMadeWhileADeviceCloses are freed, or never made.
func TestStreamsMadeWhileADeviceCloses(t *testing.T) {
	for range testgate.Effort(20, 200, 200) {
		drv := drivertest.Inject(host.New(host.Config{Granularity: 4096}), nil)
		d, err := vmm.OpenDriver(drv, 0)
		require.NoError(t, err)
		raw(t, d)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				s, err := d.NewStream()
				if err == nil {
					e, err := s.Record()
					if err == nil {
						_ = e.Close()
					}
					_ = s.Close()
				} else if !errors.Is(err, vmm.ErrClosed) {
					t.Error(err)
				}
			})
			all.Go(func() { _ = d.Close() })
		}
		all.Wait()
		require.NoError(t, d.Close())
		require.NoError(t, drv.Balanced())
	}
}

// TestOthersWhileADeviceCloses: while the driver waits for the device, no lock is held that
// other calls need.
func TestOthersWhileADeviceCloses(t *testing.T) {
	for _, at := range []string{"SyncStream", "FreeHost", "Close"} {
		w := newWorld(t, 1)
		vmm.SetStaging(w.devs[0], &vmm.Staging{Block: page})
		g := ranged(t, w, page)
		require.NoError(t, g.Close())
		h := haltAt(w, func(c drivertest.Call) bool { return c.Name == at })
		h.armed.Store(true)
		closed := make(chan error, 1)
		go func() { closed <- w.devs[0].Close() }()
		<-h.reached
		others := make(chan error, 1)
		go func() {
			w.devs[0].Stats()
			w.devs[0].Report()
			w.devs[0].SetLimit(0)
			d, err := vmm.OpenDriver(host.New(host.Config{}), 0)
			others <- errors.Join(err, d.Close())
		}()
		select {
		case err := <-others:
			require.NoError(t, err)
		case <-time.After(10 * time.Second):
			t.Errorf("%s: others wait for the Close of a device", at)
		}
		again, err := vmm.OpenDriver(w.drv, 0) // it does not get the device that is closing
		require.NoError(t, err)
		_, _, err = again.MemInfo()
		require.NoError(t, err)
		h.let()
		require.NoError(t, <-closed)
		_, _, err = again.MemInfo()
		require.NoError(t, err)
		require.NoError(t, again.Close())
		w.end()
	}
}

// TestAFailedAllocNamesItsReason: memory that the driver did not release keeps a device
// open, and not a range that the caller never had.
func TestAFailedAllocNamesItsReason(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	w.refuse("SetAccess", 1, driver.ErrInvalid)
	w.refuse("Unmap", 3, errInjected) // in the undo, in Alloc's own and in the first Close
	_, err := d.Alloc(page)
	require.ErrorIs(t, err, driver.ErrInvalid)
	require.ErrorIs(t, err, errInjected)
	err = d.Close()
	require.ErrorIs(t, err, errInjected)
	require.ErrorContains(t, err, "what a failed Alloc could not give back")
	require.NoError(t, d.Close())
	w.end()
}

// TestAClosedDeviceChangesNothing of the device that is opened after it.
func TestAClosedDeviceChangesNothing(t *testing.T) {
	w := newWorld(t, 2)
	d := w.devs[1]
	require.NoError(t, d.Close())
	d.SetLimit(1)
	d.SetReleaseThreshold(1)
	again, err := vmm.OpenDriver(w.drv, 1)
	require.NoError(t, err)
	require.Zero(t, again.Stats().Limit)
	c, err := again.Create(page, vmm.Prop{})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, again.Close())
	w.end()
}

// TestTrimReleasesAgain what the driver refused to: memory, mappings that were never
// accessible, and access that may differ from what the library has recorded.
func TestTrimReleasesAgain(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, w *world, g *vmm.Range){
		"memory": func(t *testing.T, w *world, g *vmm.Range) {
			require.NoError(t, g.SetLen(page))
			w.refuse("Release", 1, errInjected)
			require.NoError(t, g.Clip())
		},
		"a mapping": func(t *testing.T, w *world, g *vmm.Range) {
			w.refuse("SetAccess", 1, errInjected)
			w.refuse("Unmap", 1, errInjected)
			require.ErrorIs(t, g.Grow(g.Cap()), errInjected)
			require.ErrorIs(t, g.Grow(g.Cap()), errInjected, "growth past it")
		},
		"access": func(t *testing.T, w *world, g *vmm.Range) {
			w.refuse("SetAccess", 2, errInjected)
			require.ErrorIs(t, g.Grant(vmm.AccessRead, w.devs[1]), errInjected)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			g := ranged(t, w, 2*page)
			spoil(t, w, g)
			require.NotZero(t, w.devs[0].Stats().Quarantined)
			_, err := w.devs[0].Trim(0)
			require.NoError(t, err)
			require.Zero(t, w.devs[0].Stats().Quarantined)
			require.NoError(t, g.Grow(g.Cap()))
			require.NoError(t, g.Close())
			w.end()
		})
	}
}

// TestGrowthReleasesAgain what the driver refused to, if memory runs out.
func TestGrowthReleasesAgain(t *testing.T) {
	w := worldOn(t, 1, host.Config{Memory: 4 * page, Granularity: page})
	g, h := ranged(t, w, 3*page), ranged(t, w, page)
	require.NoError(t, g.SetLen(0))
	w.refuse("Release", 3, errInjected)
	require.NoError(t, g.Clip())
	require.NotZero(t, w.devs[0].Stats().Quarantined)
	require.NoError(t, h.Append(pattern(3*page, 1)))
	require.Zero(t, w.devs[0].Stats().Quarantined)
	require.NoError(t, g.Close())
	require.NoError(t, h.Close())
	w.end()
}

// TestGrowthUsesWhatOthersReleased: of two growths that are out of memory one empties the
// caches. The other finds nothing kept any more, but enough that is free.
func TestGrowthUsesWhatOthersReleased(t *testing.T) {
	drv := &afterCreate{Driver: host.New(host.Config{Memory: 8 * page, Granularity: page})}
	d, err := vmm.OpenDriver(drv, 0)
	require.NoError(t, err)
	d.SetReleaseThreshold(8 * page)
	old := newRange(t, d, vmm.RangeOptions{Max: 8 * page, Chunk: page})
	require.NoError(t, old.Grow(8*page))
	require.NoError(t, old.Close())
	x := newRange(t, d, vmm.RangeOptions{Max: 8 * page, Chunk: 2 * page})
	y := newRange(t, d, vmm.RangeOptions{Max: 8 * page, Chunk: 2 * page})
	reached, gone := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(reached); <-gone })
	drv.set(func(err error) {
		if errors.Is(err, vmm.ErrOutOfMemory) {
			drv.set(nil)
			first()
		}
	})
	grown := make(chan error, 1)
	go func() { grown <- y.Grow(page) }()
	<-reached
	require.NoError(t, x.Grow(page))
	close(gone)
	require.NoError(t, <-grown)
	require.NoError(t, x.Close())
	require.NoError(t, y.Close())
	require.NoError(t, d.Close())
}

// TestGrowthsOutOfMemoryTogether all find what was kept.
func TestGrowthsOutOfMemoryTogether(t *testing.T) {
	for range 100 {
		w := worldOn(t, 1, host.Config{Memory: 64 * page, Granularity: page})
		d := w.devs[0]
		d.SetReleaseThreshold(64 * page)
		old := newRange(t, d, vmm.RangeOptions{Max: 64 * page, Chunk: page})
		require.NoError(t, old.Grow(64*page))
		require.NoError(t, old.Close())
		var all sync.WaitGroup
		for range 4 {
			g := newRange(t, d, vmm.RangeOptions{Max: 8 * page, Chunk: 2 * page})
			all.Go(func() {
				if err := g.Grow(page); err != nil {
					t.Error(err)
				}
				_ = g.Close()
			})
		}
		all.Wait()
		w.end()
	}
}

// afterCreate calls a function with the result of each Create.
type afterCreate struct {
	*host.Driver
	after atomic.Pointer[func(error)]
}

func (d *afterCreate) set(f func(error)) {
	if f == nil {
		d.after.Store(nil)
		return
	}
	d.after.Store(&f)
}

func (d *afterCreate) Create(size uint64, p driver.Prop) (driver.Handle, error) {
	h, err := d.Driver.Create(size, p)
	if f := d.after.Load(); f != nil {
		(*f)(err)
	}
	return h, err
}

// TestNoCallWaitsBehindAClip that waits for a device: contract 9.
func TestNoCallWaitsBehindAClip(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g := ranged(t, w, page)
	require.NoError(t, g.Grow(4*page))
	s := stream(t, d)
	open := gate(t, d, s.Raw())
	clip := make(chan error, 1)
	go func() { clip <- g.Clip() }()
	for g.Stats().Retiring == 0 {
		runtime.Gosched()
	}
	done := make(chan error, 1)
	go func() {
		release, err := g.Hold(0, page)
		if err == nil {
			release()
		}
		done <- errors.Join(err, g.Grow(page), g.Append([]byte{1}), g.SetLen(page))
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		t.Error("an Append that fits waits for another stream's work, since a Clip does")
	}
	open()
	require.NoError(t, <-clip)
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestNoCallWaitsBehindARead: a first Grant, a Clip and a Revoke that wait for a long read
// delay no Append. A Grant that removes no access does not wait itself.
func TestNoCallWaitsBehindARead(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(g *vmm.Range, peer *vmm.Device) error
		waits bool
	}{
		"grant":  {func(g *vmm.Range, peer *vmm.Device) error { return g.Grant(vmm.AccessRead, peer) }, false},
		"clip":   {func(g *vmm.Range, _ *vmm.Device) error { return g.Clip() }, true},
		"revoke": {func(g *vmm.Range, peer *vmm.Device) error { return g.Revoke(peer) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			g := ranged(t, w, page)
			require.NoError(t, g.Grow(3*page))
			if name == "revoke" {
				require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
			}
			h := haltAt(w, func(c drivertest.Call) bool { return c.Name == "CopyOut" })
			h.armed.Store(true)
			read := begun(func() error { _, err := g.ReadAt(make([]byte, 1), 0); return err })
			<-h.reached
			done := begun(func() error { return c.do(g, w.devs[1]) })
			if !c.waits {
				require.NoError(t, within(t, done, name+" waits for a read"))
			} else {
				for range 1000 {
					runtime.Gosched()
				}
			}
			require.NoError(t, within(t, begun(func() error { return g.Append([]byte{1}) }), "an Append waits for another's read"))
			h.let()
			require.NoError(t, <-read)
			if c.waits {
				require.NoError(t, <-done)
			}
			require.NoError(t, g.Close())
			w.end()
		})
	}
}

// within returns what comes soon.
func within(t *testing.T, c <-chan error, what string) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal(what)
		return nil
	}
}

// TestAResetByAnotherLibrary ends what was opened and leaves what is mapped: the device can
// be closed and opened again, and nothing of the old one is used.
func TestAResetByAnotherLibrary(t *testing.T) {
	for _, used := range []bool{false, true} {
		drv := host.New(host.Config{Devices: 2, Granularity: page})
		w := worldOf(t, 2, drv, nil)
		d := w.devs[0]
		g := ranged(t, w, 2*page)
		s := stream(t, d)
		e, err := s.Record()
		require.NoError(t, err)
		if used {
			require.NoError(t, g.UsedBy(s))
		}
		require.NoError(t, drv.ResetContext(0))
		require.ErrorIs(t, g.Append([]byte{1}), vmm.ErrContextReset)
		require.ErrorIs(t, s.Sync(), vmm.ErrContextReset)
		require.ErrorIs(t, e.Sync(), vmm.ErrContextReset)
		require.ErrorIs(t, d.Sync(), vmm.ErrContextReset)
		_, _, err = w.devs[1].MemInfo()
		require.NoError(t, err, "the other device is well")

		require.NoError(t, e.Close())
		require.ErrorIs(t, s.Close(), vmm.ErrContextReset)
		if err := g.Close(); err != nil {
			require.ErrorIs(t, err, vmm.ErrContextReset)
		}
		require.NoError(t, d.Close())
		again, err := vmm.OpenDriver(w.drv, 0)
		require.NoError(t, err)
		h, err := again.NewRange(vmm.RangeOptions{Max: 4 * page})
		require.NoError(t, err)
		require.NoError(t, h.Append(pattern(page, 1)))
		got := make([]byte, page)
		_, err = h.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, pattern(page, 1), got)
		require.NoError(t, h.Close())
		require.NoError(t, again.Close())
		require.NoError(t, w.devs[1].Close())
		st := d.Stats()
		require.Zero(t, st.Reserved+st.Committed+st.Retiring+st.Quarantined)
	}
}

// TestCopiesAfterAReset do not touch pinned memory of the old context.
func TestCopiesAfterAReset(t *testing.T) {
	if onCUDA {
		t.Skip("the host driver alone can be reset without losing this process's tests")
	}
	for name, copyIn := range map[string]func(g *vmm.Range, s *vmm.Stream) error{
		"AppendOn": func(g *vmm.Range, s *vmm.Stream) error { return g.AppendOn(s, pattern(page, 1)) },
		"CopyIn":   func(g *vmm.Range, s *vmm.Stream) error { return s.CopyIn(g.Ptr(), pattern(page, 1)) },
		"CopyOut":  func(g *vmm.Range, s *vmm.Stream) error { return s.CopyOut(make([]byte, page), g.Ptr()) },
		"Append":   func(g *vmm.Range, _ *vmm.Stream) error { return g.Append(pattern(page, 1)) },
		"ReadAt":   func(g *vmm.Range, _ *vmm.Stream) error { _, err := g.ReadAt(make([]byte, page), 0); return err },
	} {
		t.Run(name, func(t *testing.T) {
			drv := host.New(host.Config{Granularity: page})
			w := worldOf(t, 1, drv, nil)
			vmm.SetStaging(w.devs[0], &vmm.Staging{Block: page, Lanes: 2})
			g, s := ranged(t, w, 8*page), stream(t, w.devs[0])
			require.NoError(t, copyIn(g, s))
			require.NoError(t, s.Sync())
			require.NoError(t, drv.ResetContext(0))
			require.ErrorIs(t, copyIn(g, s), vmm.ErrContextReset)
		})
	}
}

// TestDeviceCloseDoesNotJoinWaits of what is open: it returns that it is open.
func TestDeviceCloseDoesNotJoinWaits(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, s := ranged(t, w, page), stream(t, d)
	open := gate(t, d, s.Raw())
	require.NoError(t, g.AppendOn(s, []byte{1}))
	ctx, cancel := context.WithCancel(t.Context())
	written := begun(func() error { _, err := g.WaitWritten(ctx); return err })
	cancel()
	require.ErrorIs(t, <-written, context.Canceled)
	require.ErrorIs(t, within(t, begun(d.Close), "Close waits for Written"), vmm.ErrBusy)
	open()
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestGrowthWaitsForTrim that is about to release cached memory.
func TestGrowthWaitsForTrim(t *testing.T) {
	w := worldOn(t, 1, host.Config{Memory: 16 * page, Granularity: page})
	d := w.devs[0]
	d.SetReleaseThreshold(16 * page)
	keepChunks(t, w, 4, 4, 4)
	h := haltAt(w, func(c drivertest.Call) bool { return c.Name == "Release" })
	h.armed.Store(true)
	trimmed := begun(func() error { _, err := d.Trim(0); return err })
	<-h.reached
	g := newRange(t, d, vmm.RangeOptions{Max: 16 * page, Chunk: page})
	grown := begun(func() error { return g.Grow(16 * page) })
	h.let()
	require.NoError(t, <-trimmed)
	require.NoError(t, <-grown)
	require.NoError(t, g.Close())
	w.end()
}

// TestAnImportThatCannotBeReleased is released later.
func TestAnImportThatCannotBeReleased(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	c, err := d.Create(page, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	fd, err := c.Export()
	require.NoError(t, err)
	w.refuse("Properties", 1, errInjected)
	w.refuse("Release", 1, errInjected)
	_, err = d.Import(fd, page, vmm.Prop{Share: vmm.ShareFD})
	require.ErrorIs(t, err, errInjected)
	require.NoError(t, os.NewFile(uintptr(fd), "chunk").Close())
	require.EqualValues(t, page, d.Stats().Quarantined)
	_, err = d.Trim(0)
	require.NoError(t, err)
	require.Zero(t, d.Stats().Quarantined)
	require.NoError(t, c.Close())
	w.end()
}
