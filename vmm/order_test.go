package vmm_test

import (
	"cmp"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// record records an event that is closed at the end of the test.
func record(t *testing.T, s *vmm.Stream) *vmm.Event {
	t.Helper()
	e, err := s.Record()
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// fence is record for a Fence. The caller frees it.
func fence(t *testing.T, s *vmm.Stream) vmm.Fence {
	t.Helper()
	f, err := s.Fence()
	require.NoError(t, err)
	return f
}

// apart calls f in a goroutine of its own, as one that holds none of the caller's locks, and
// waits for it.
func apart(f func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errors.New("it did not return")
		defer func() { done <- err }()
		err = f()
	}()
	return <-done
}

// TestPointCounts: each way to record an event takes a number, and so is above what was read
// before; what the driver refuses covers nothing, and takes at most a number.
func TestPointCounts(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s := stream(t, d)
	e, err := d.NewEvent(vmm.EventBlocking)
	require.NoError(t, err)
	require.Zero(t, s.Point())
	for name, again := range map[string]func() error{
		"Record":       func() error { return record(t, s).Close() },
		"Event.Record": func() error { return e.Record(s) },
		"Fence":        func() error { fence(t, s).Free(); return nil },
		"Clip after UsedBy": func() error {
			g := ranged(t, w, page)
			if err := errors.Join(g.UsedBy(s), g.SetLen(0), g.Clip()); err != nil {
				return err
			}
			return g.Close()
		},
	} {
		before := s.Point()
		require.NoError(t, again(), name)
		require.Greater(t, s.Point(), before, name)
	}
	require.Zero(t, s.After(stream(t, d)))
	w.refuse("Record", 1, errInjected)
	_, err = s.Record()
	require.ErrorIs(t, err, errInjected)
	require.Equal(t, s.Point(), s.After(s), "its own work comes after all of it")
	require.NoError(t, e.Close())
	require.NoError(t, s.Close())
}

// TestAfter: what a stream has waited for, directly and through others, and nothing that came
// after the event.
func TestAfter(t *testing.T) {
	w := newWorld(t, 2)
	a, b, c := stream(t, w.devs[0]), stream(t, w.devs[1]), stream(t, w.devs[0])
	first := record(t, a)
	n := a.Point()
	record(t, a) // no stream waits for it
	require.Greater(t, a.Point(), n)

	require.NoError(t, b.Wait(first))
	require.Equal(t, n, b.After(a))
	require.Zero(t, a.After(b))
	early := fence(t, b)
	m := b.Point()
	second := record(t, a)
	require.NoError(t, b.Wait(second))
	require.Greater(t, b.After(a), n)

	require.NoError(t, c.WaitFence(early))
	require.Equal(t, m, c.After(b))
	require.Equal(t, n, c.After(a), "as b was when the fence was recorded")
	require.NoError(t, a.WaitFence(early), "its own event comes back")
	require.Equal(t, m, a.After(b))
	require.Equal(t, a.Point(), a.After(a))
	require.NoError(t, b.Wait(first), "the lower number")
	require.Greater(t, b.After(a), n)
	early.Free()

	// A wait that the driver refuses orders nothing.
	late := record(t, a)
	had := c.After(a)
	w.refuse("Wait", 1, errInjected)
	require.ErrorIs(t, c.Wait(late), errInjected)
	require.Equal(t, had, c.After(a))
	require.NoError(t, c.Wait(late))
	require.Greater(t, c.After(a), had)

	// Closed streams are forgotten when something is added.
	require.NoError(t, b.Close())
	require.NoError(t, c.Wait(record(t, a)))
	require.Zero(t, c.After(b))
	require.Equal(t, uint64(math.MaxUint64), b.Finished())
	require.Zero(t, b.After(a))
}

// TestFinished: every wait that succeeds, and every Done that returns true, shows
// that the work has ended, and what it came after; a Done that returns false does not.
func TestFinished(t *testing.T) {
	yes := func(t *testing.T, ask func() (bool, error)) {
		t.Helper()
		done, err := ask()
		require.NoError(t, err)
		require.True(t, done)
	}
	for name, see := range map[string]func(t *testing.T, s *vmm.Stream, e *vmm.Event, f vmm.Fence){
		"Stream.Sync": func(t *testing.T, s *vmm.Stream, _ *vmm.Event, _ vmm.Fence) { require.NoError(t, s.Sync()) },
		"Stream.Done": func(t *testing.T, s *vmm.Stream, _ *vmm.Event, _ vmm.Fence) { yes(t, s.Done) },
		"Event.Sync":  func(t *testing.T, _ *vmm.Stream, e *vmm.Event, _ vmm.Fence) { require.NoError(t, e.Sync()) },
		"Event.Done":  func(t *testing.T, _ *vmm.Stream, e *vmm.Event, _ vmm.Fence) { yes(t, e.Done) },
		"Fence.Sync":  func(t *testing.T, _ *vmm.Stream, _ *vmm.Event, f vmm.Fence) { require.NoError(t, f.Sync()) },
		"Fence.Done":  func(t *testing.T, _ *vmm.Stream, _ *vmm.Event, f vmm.Fence) { yes(t, f.Done) },
		"Device.Sync": func(t *testing.T, s *vmm.Stream, _ *vmm.Event, _ vmm.Fence) { require.NoError(t, s.Device().Sync()) },
		"a stream that no event can be recorded on": func(t *testing.T, s *vmm.Stream, _ *vmm.Event, _ vmm.Fence) {
			require.NoError(t, s.Sync())
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			s, before := stream(t, w.devs[0]), stream(t, w.devs[1])
			open := gate(t, before.Device(), before.Raw())
			freedBefore := before.Point()
			require.NoError(t, s.Wait(record(t, before)))
			freed := s.Point()
			e, f := record(t, s), fence(t, s)
			for _, ask := range []func() (bool, error){s.Done, e.Done, f.Done} {
				done, err := ask()
				require.NoError(t, err)
				require.False(t, done)
			}
			require.LessOrEqual(t, s.Finished(), freed)
			require.LessOrEqual(t, before.Finished(), freedBefore)
			open()
			require.NoError(t, raw(t, w.devs[0]).Sync(), "which this package does not see")
			require.LessOrEqual(t, s.Finished(), freed)
			if name == "a stream that no event can be recorded on" {
				w.refuse("Record", 1, vmm.ErrInvalid)
			}
			see(t, s, e, f)
			require.Greater(t, s.Finished(), freed)
			require.Greater(t, before.Finished(), freedBefore)
			later := s.Point()
			record(t, s)
			require.LessOrEqual(t, s.Finished(), later, "no call has asked since")
			f.Free()
			require.NoError(t, s.Close())
			require.Equal(t, uint64(math.MaxUint64), s.Finished())
		})
	}
}

// TestFinishedOfLostDevices: an error shows nothing, nor does Done that is true because the
// device was reset: what the work came after may run on another device.
func TestFinishedOfLostDevices(t *testing.T) {
	w, reset := resettable(t, 2)
	s, peer := stream(t, w.devs[0]), stream(t, w.devs[1])
	open := gate(t, peer.Device(), peer.Raw())
	before := peer.Point()
	require.NoError(t, s.Wait(record(t, peer)))
	own := s.Point()
	f := fence(t, s)
	reset(0)
	done, err := f.Done()
	require.NoError(t, err)
	require.True(t, done)
	require.ErrorIs(t, f.Sync(), vmm.ErrDeviceLost)
	require.ErrorIs(t, s.Sync(), vmm.ErrDeviceLost)
	require.ErrorIs(t, w.devs[0].Sync(), vmm.ErrDeviceLost)
	require.LessOrEqual(t, s.Finished(), own)
	require.LessOrEqual(t, peer.Finished(), before)
	f.Free()
	require.ErrorIs(t, s.Close(), vmm.ErrDeviceLost)
	require.Equal(t, uint64(math.MaxUint64), s.Finished())
	require.LessOrEqual(t, peer.Finished(), before)
	open()
	require.NoError(t, peer.Sync())
	require.Greater(t, peer.Finished(), before)
}

// TestEventRecordedAnewMeanwhile: a wait for an event that another goroutine records anew, on
// another stream, shows nothing of the first one. Here that happens right before the driver
// is asked.
func TestEventRecordedAnewMeanwhile(t *testing.T) {
	for name, call := range map[string]func(w *world, later *vmm.Stream, e *vmm.Event) error{
		"Wait":      func(_ *world, later *vmm.Stream, e *vmm.Event) error { return later.Wait(e) },
		"SyncEvent": func(_ *world, _ *vmm.Stream, e *vmm.Event) error { return e.Sync() },
		"Done":      func(_ *world, _ *vmm.Stream, e *vmm.Event) error { _, err := e.Done(); return err },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			d := w.devs[0]
			slow, idle, later := stream(t, d), stream(t, d), stream(t, d)
			open := gate(t, slow.Device(), slow.Raw())
			e, err := d.NewEvent(vmm.EventBlocking)
			require.NoError(t, err)
			before := slow.Point()
			require.NoError(t, e.Record(slow))
			again := true
			w.before = func(c drivertest.Call) error {
				if c.Name == name && again {
					again = false
					return apart(func() error { return e.Record(idle) })
				}
				return nil
			}
			require.NoError(t, call(w, later, e))
			require.False(t, again)
			require.LessOrEqual(t, slow.Finished(), before, "its work has not ended")
			require.Zero(t, later.After(slow), "it does not wait for it")
			open()
			require.NoError(t, call(w, later, e), "and now for where it is")
			require.True(t, later.After(idle) > 0 || idle.Finished() > 0)
			require.NoError(t, e.Close())
		})
	}
}

// afterRecord is a driver that calls a function after it has recorded an event.
type afterRecord struct {
	driver.Driver
	call func()
}

// afterRecordDevice is its device.
type afterRecordDevice struct {
	driver.Device
	driver.StreamMemOps
	driver.HostAllocator
	of *afterRecord
}

func (d *afterRecord) Open(n int) (driver.Device, error) {
	dev, err := d.Driver.Open(n)
	if err != nil {
		return nil, err
	}
	return &afterRecordDevice{dev, dev.(driver.StreamMemOps), dev.(driver.HostAllocator), d}, nil
}

func (v *afterRecordDevice) Record(e driver.Event, s driver.Stream) error {
	err := v.Device.Record(e, s)
	if call := v.of.call; call != nil {
		err = cmp.Or(err, apart(func() error { call(); return nil }))
	}
	return err
}

// TestEventWhileItIsRecorded: the driver has moved the event, and Record has not returned.
func TestEventWhileItIsRecorded(t *testing.T) {
	drv := &afterRecord{Driver: host.New(host.Config{})}
	w := worldOf(t, 1, drv, nil)
	d := w.devs[0]
	slow, idle, later := stream(t, d), stream(t, d), stream(t, d)
	open := gate(t, slow.Device(), slow.Raw())
	e, err := d.NewEvent(vmm.EventBlocking)
	require.NoError(t, err)
	before := slow.Point()
	require.NoError(t, e.Record(slow))
	var waited <-chan error
	drv.call = func() {
		drv.call = nil
		waited = begun(func() error { return later.Wait(e) })
		require.NoError(t, e.Sync())
	}
	require.NoError(t, e.Record(idle))
	require.NoError(t, <-waited)
	require.Zero(t, later.After(slow))
	require.LessOrEqual(t, slow.Finished(), before)
	open()
	require.NoError(t, e.Close())
}

// TestNumberComesBeforeTheEvent: what is queued, and waited for, once the driver has recorded
// the event is not before it, though the call has not returned yet.
func TestNumberComesBeforeTheEvent(t *testing.T) {
	drv := &afterRecord{Driver: host.New(host.Config{})}
	d := worldOf(t, 1, drv, nil).devs[0]
	for name, again := range map[string]func(s *vmm.Stream, e *vmm.Event) error{
		"Record":       func(s *vmm.Stream, _ *vmm.Event) error { return record(t, s).Sync() },
		"Event.Record": func(s *vmm.Stream, e *vmm.Event) error { return errors.Join(e.Record(s), e.Sync()) },
		"Fence": func(s *vmm.Stream, _ *vmm.Event) error {
			f := fence(t, s)
			defer f.Free()
			return f.Sync()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, slow := stream(t, d), stream(t, d)
			e, err := d.NewEvent(vmm.EventBlocking)
			require.NoError(t, err)
			open := gate(t, slow.Device(), slow.Raw())
			late := record(t, slow)
			var queued, waitedFor uint64
			drv.call = func() {
				drv.call = nil
				queued, waitedFor = s.Point(), slow.Point()
				require.NoError(t, s.Wait(late))
			}
			require.NoError(t, again(s, e))
			require.LessOrEqual(t, s.Finished(), queued)
			require.Less(t, slow.Finished(), waitedFor)
			open()
			require.NoError(t, e.Close())
		})
	}
}

// TestEventRecordedTwiceAtOnce is of no known place, until it is recorded again.
func TestEventRecordedTwiceAtOnce(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	a, b := stream(t, d), stream(t, d)
	e, err := d.NewEvent(vmm.EventBlocking)
	require.NoError(t, err)
	inner := true
	w.before = func(c drivertest.Call) error {
		if c.Name == "Record" && inner {
			inner = false
			return apart(func() error { return e.Record(b) })
		}
		return nil
	}
	require.NoError(t, e.Record(a))
	require.False(t, inner)
	require.NoError(t, e.Sync())
	require.Zero(t, a.Finished())
	require.Zero(t, b.Finished())
	require.NoError(t, e.Record(a))
	require.NoError(t, e.Sync())
	require.NotZero(t, a.Finished())
	w.refuse("Record", 1, errInjected)
	had := a.Finished()
	require.ErrorIs(t, e.Record(a), errInjected)
	require.NoError(t, e.Sync())
	require.Equal(t, had, a.Finished(), "its place is unknown")
	require.NoError(t, e.Close())
}

// TestCapturesDoNotCount: an event of a capture shows nothing, neither to those who wait for
// it nor afterwards; nor does a wait of a captured stream.
func TestCapturesDoNotCount(t *testing.T) {
	for _, ours := range []bool{true, false} {
		w := newWorld(t, 1)
		d := w.devs[0]
		own, joined := stream(t, d), stream(t, d)
		s, end := own, func() {
			g, err := own.EndCapture()
			require.NoError(t, err)
			require.NoError(t, g.Close())
		}
		if ours {
			require.NoError(t, s.BeginCapture())
		} else {
			s = d.WrapStream(uintptr(own.Raw()))
			c := raw(t, d).(driver.Grapher)
			require.NoError(t, c.BeginCapture(own.Raw(), driver.CaptureRelaxed))
			end = func() { require.NoError(t, endCapture(c, own.Raw())) }
		}
		before := s.Point()
		fork := record(t, s)
		require.Equal(t, before, s.Point())
		require.NoError(t, joined.Wait(fork))
		require.Zero(t, joined.After(s))
		back := record(t, joined)
		require.Zero(t, joined.Point(), "it is part of the capture")
		require.NoError(t, s.Wait(back))
		require.Zero(t, s.After(joined))
		for _, x := range []*vmm.Stream{s, joined} {
			require.ErrorIs(t, x.Usable(), vmm.ErrCapturing)
			require.ErrorIs(t, x.Sync(), vmm.ErrCapturing)
		}
		end()
		for _, x := range []*vmm.Stream{s, joined} {
			require.NoError(t, x.Usable())
			require.Zero(t, x.Finished())
		}
		require.NoError(t, fork.Close())
		require.NoError(t, back.Close())
		require.NoError(t, s.Wait(record(t, joined)))
		require.Equal(t, joined.Point(), s.After(joined), "now it counts")
		require.NoError(t, s.Close())
	}
}

// TestUsable asks the driver only where a capture may be, and refuses what would not run.
func TestUsable(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s, other := stream(t, d), stream(t, d)
	wrapped := d.WrapStream(uintptr(other.Raw()))
	require.Same(t, d, s.Device())
	require.Nil(t, (*vmm.Stream)(nil).Device())
	w.arm()
	require.NoError(t, s.Usable())
	require.Empty(t, w.disarm())
	w.arm()
	require.NoError(t, wrapped.Usable())
	require.Equal(t, []string{"Capturing"}, w.disarm())
	w.refuse("Capturing", 1, errInjected)
	require.ErrorIs(t, wrapped.Usable(), errInjected)
	require.NoError(t, wrapped.Close())
	require.ErrorIs(t, wrapped.Usable(), vmm.ErrClosed)

	require.NoError(t, s.BeginCapture())
	require.ErrorIs(t, s.Usable(), vmm.ErrCapturing)
	require.NoError(t, other.Usable())
	g, err := s.EndCapture()
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.NoError(t, s.Usable())

	_, _, release, err := s.Hold()
	require.NoError(t, err)
	closed := begun(s.Close)
	require.Eventually(t, func() bool { return vmm.Closing(s) }, 10*time.Second, time.Millisecond)
	require.ErrorIs(t, s.Usable(), vmm.ErrClosed)
	release()
	require.NoError(t, <-closed)
	require.ErrorIs(t, s.Usable(), vmm.ErrClosed)
	require.ErrorIs(t, (*vmm.Stream)(nil).Usable(), vmm.ErrInvalid)
	require.NoError(t, other.Close())
	w.end()
	require.ErrorIs(t, d.WrapStream(7).Usable(), vmm.ErrClosed)
}

// TestDeviceSyncOfWrappedStreams counts for those that take events of the device's context.
// Whether another one is of that context is not known.
func TestDeviceSyncOfWrappedStreams(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	theirs := stream(t, d)
	wrapped, legacy := d.WrapStream(uintptr(theirs.Raw())), d.WrapStream(0)
	foreign := stream(t, d)
	vmm.SetForeign(foreign, true)
	require.NoError(t, d.Sync())
	require.NotZero(t, theirs.Finished())
	require.NotZero(t, legacy.Finished(), "of every context")
	require.Zero(t, wrapped.Finished())
	require.Zero(t, foreign.Finished())
	// One that is of another context refuses its events.
	w.refuse("Record", 1, vmm.ErrInvalid)
	_, err := foreign.Record()
	require.ErrorIs(t, err, vmm.ErrInvalid)
	fence(t, wrapped).Free()
	require.NoError(t, d.Sync())
	require.Equal(t, wrapped.Point(), wrapped.Finished())
	require.Zero(t, foreign.Finished())
	vmm.SetForeign(foreign, false)
	for _, s := range []*vmm.Stream{wrapped, legacy, foreign, theirs} {
		require.NoError(t, s.Close())
	}
	w.end()
}

// TestOrderCostsNoAllocation beyond the driver's own: recording never, also on a stream that
// waits for others, and waiting if it tells nothing new.
func TestOrderCostsNoAllocation(t *testing.T) {
	if lock.Ordered {
		t.Skip("the race detector's locks allocate")
	}
	d, err := vmm.Open("host")
	require.NoError(t, err)
	s, other := stream(t, d), stream(t, d)
	require.NoError(t, s.Wait(record(t, other)))
	e, err := d.NewEvent(vmm.EventBlocking)
	require.NoError(t, err)
	f := fence(t, other)
	require.NoError(t, s.WaitFence(f))
	dev := raw(t, d)
	theirs, err := dev.NewEvent(vmm.EventBlocking)
	require.NoError(t, err)
	require.NoError(t, dev.Record(theirs, other.Raw()))
	cost := func(do func() error) float64 {
		return testing.AllocsPerRun(100, func() {
			if err := do(); err != nil {
				t.Error(err)
			}
		})
	}
	require.LessOrEqual(t, cost(func() error { return e.Record(s) }), cost(func() error { return dev.Record(theirs, s.Raw()) }))
	require.LessOrEqual(t, cost(func() error { return s.WaitFence(f) }), cost(func() error { return dev.Wait(s.Raw(), theirs) }))
	require.Zero(t, cost(func() error {
		if s.Point()+s.Finished()+s.After(other) == 0 {
			return vmm.ErrInvalid
		}
		return s.Usable()
	}))
	f.Free()
	require.NoError(t, dev.FreeEvent(theirs))
	require.NoError(t, e.Close())
	for _, s := range []*vmm.Stream{s, other} {
		require.NoError(t, s.Close())
	}
}
