package vmm_test

import (
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// What is tested here is for code that queues work of its own: kernels, and pools.

// taking is an operation that takes memory away, or access to it: the last page of a
// range with two beyond its Len, or the second run of a reservation.
type taking struct {
	dev int // whose stream has locked it
	do  func(w *world, g *vmm.Range, r *vmm.Reservation, s *vmm.Stream) error
}

func takings() map[string]taking {
	return map[string]taking{
		"clip": {0, func(_ *world, g *vmm.Range, _ *vmm.Reservation, _ *vmm.Stream) error { return g.Clip() }},
		"clip with a named stream": {0, func(_ *world, g *vmm.Range, _ *vmm.Reservation, s *vmm.Stream) error {
			return errors.Join(g.UsedBy(s), g.Clip())
		}},
		"sleep": {0, func(_ *world, g *vmm.Range, _ *vmm.Reservation, _ *vmm.Stream) error {
			return vmm.Sleep(vmm.SleepKeep, g)
		}},
		"revoke": {1, func(w *world, g *vmm.Range, _ *vmm.Reservation, _ *vmm.Stream) error {
			return g.Revoke(w.devs[1])
		}},
		"close of a range": {0, func(_ *world, g *vmm.Range, _ *vmm.Reservation, _ *vmm.Stream) error { return g.Close() }},
		"unmap": {0, func(_ *world, _ *vmm.Range, r *vmm.Reservation, _ *vmm.Stream) error {
			return r.Unmap(8*page, 3*page)
		}},
		"unmap now": {0, func(_ *world, _ *vmm.Range, r *vmm.Reservation, _ *vmm.Stream) error {
			return r.UnmapNow(8*page, 3*page)
		}},
		"close of a reservation": {0, func(_ *world, _ *vmm.Range, r *vmm.Reservation, _ *vmm.Stream) error { return r.Close() }},
	}
}

// TestLockSpansKeepsMemory: what takes the memory away waits, and goes on after unlock;
// without the lock it does not wait.
func TestLockSpansKeepsMemory(t *testing.T) {
	for name, take := range takings() {
		t.Run(name, func(t *testing.T) {
			for _, locked := range []bool{true, false} {
				bubble(t, 2, func(t *testing.T, w *paced) {
					g, r := ranged(t, w.world, page), holed(t, w.world)
					require.NoError(t, g.Grow(2*page))
					require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
					require.NoError(t, r.Grant(vmm.AccessRead, w.devs[1]))
					s := stream(t, w.devs[take.dev])
					unlock, err := s.LockSpans(
						vmm.Span{Addr: g.Ptr() + vmm.Ptr(g.Cap()-page), Size: page, Access: vmm.AccessRead},
						vmm.Span{Addr: r.Ptr() + 8*page, Size: 3 * page, Access: vmm.AccessRead},
						vmm.Span{Addr: g.Ptr(), Size: 1, Access: vmm.AccessRead})
					require.NoError(t, err)
					if !locked {
						unlock()
					}
					w.arm()
					taken := begun(func() error { return take.do(w.world, g, r, s) })
					pass(time.Second)
					calls := w.disarm()
					if locked {
						require.Empty(t, taken)
						require.NotContains(t, calls, "Unmap")
						require.NotContains(t, calls, "SetAccess")
						unlock()
					} else {
						require.Len(t, taken, 1)
					}
					unlock()
					require.NoError(t, <-taken)
					pass(time.Second)
					require.Zero(t, w.devs[0].Stats().Retiring)
					require.NoError(t, g.Close())
					require.NoError(t, r.Close())
					require.NoError(t, s.Close())
				})
			}
		})
	}
}

// TestLockSpansAsksNothing of the driver: it is called around small calls.
func TestLockSpansAsksNothing(t *testing.T) {
	w := newWorld(t, 1)
	g, s := ranged(t, w, page), stream(t, w.devs[0])
	require.NoError(t, g.SetLen(8))
	w.arm()
	unlock, err := s.LockSpans(vmm.Span{Addr: g.Ptr(), Size: 8, Access: vmm.AccessReadWrite})
	require.NoError(t, err)
	unlock()
	require.Empty(t, w.disarm())
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestLockSpansHoldsTheStream: its Close waits for unlock, also of no spans.
func TestLockSpansHoldsTheStream(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		s := stream(t, w.devs[0])
		require.Equal(t, s.Raw(), s.Queue())
		unlock, err := s.LockSpans()
		require.NoError(t, err)
		closed := begun(s.Close)
		pass(time.Second)
		require.Empty(t, closed)
		unlock()
		unlock()
		require.NoError(t, <-closed)
		require.Zero(t, (*vmm.Stream)(nil).Queue())
	})
}

// TestLockSpansRefuses what a kernel could not use until unlock, and has locked nothing
// then.
func TestLockSpansRefuses(t *testing.T) {
	w := newWorld(t, 2)
	d, peer := w.devs[0], w.devs[1]
	vmm.SetNoWorker(d, true)
	g, r, asleep, named, granted := ranged(t, w, 2*page), holed(t, w), ranged(t, w, page), ranged(t, w, page), ranged(t, w, page)
	full := newRange(t, d, vmm.RangeOptions{Max: 2 * page, Chunk: page})
	require.NoError(t, full.Append(pattern(2*page, 1)))
	require.NoError(t, vmm.Sleep(vmm.SleepDrop, asleep))
	s, other, theirs := stream(t, d), stream(t, d), stream(t, peer)
	gone, late, open := queuedClip(t, w)
	require.NoError(t, named.UsedBy(other))
	require.NoError(t, granted.Grant(vmm.AccessRead, peer))
	closed := stream(t, d)
	require.NoError(t, closed.Close())

	const read, write = vmm.AccessRead, vmm.AccessReadWrite
	for _, c := range []struct {
		name string
		on   *vmm.Stream
		span vmm.Span
		want error
	}{
		{"mapped", s, vmm.Span{Addr: g.Ptr(), Size: 2 * page, Access: write}, nil},
		{"nothing at all", s, vmm.Span{Addr: g.Ptr() + 200*page}, nil},
		{"unknown memory", s, vmm.Span{Addr: 4096, Size: page, Access: write}, nil},
		{"not mapped", s, vmm.Span{Addr: g.Ptr() + vmm.Ptr(g.Cap()) - 1, Size: 2, Access: read}, vmm.ErrBounds},
		{"over a hole", s, vmm.Span{Addr: r.Ptr(), Size: 9 * page, Access: read}, vmm.ErrBounds},
		{"over a range's end", s, vmm.Span{Addr: full.Ptr() + page, Size: 2 * page, Access: read}, vmm.ErrBounds},
		{"overflow", s, vmm.Span{Addr: g.Ptr(), Size: math.MaxUint64, Access: read}, vmm.ErrBounds},
		{"retiring", late, vmm.Span{Addr: gone.Ptr() + page, Size: page, Access: read}, vmm.ErrBounds},
		{"asleep", s, vmm.Span{Addr: asleep.Ptr(), Size: 1, Access: read}, vmm.ErrAsleep},
		{"a named stream", other, vmm.Span{Addr: named.Ptr(), Size: 1, Access: read}, nil},
		{"another stream", s, vmm.Span{Addr: named.Ptr(), Size: 1, Access: read}, vmm.ErrInvalid},
		{"the owner writes", s, vmm.Span{Addr: granted.Ptr(), Size: 1, Access: write}, nil},
		{"a peer reads", theirs, vmm.Span{Addr: granted.Ptr(), Size: 1, Access: read}, nil},
		{"a peer writes", theirs, vmm.Span{Addr: granted.Ptr(), Size: 1, Access: write}, vmm.ErrPermission},
		{"a peer without a grant", theirs, vmm.Span{Addr: g.Ptr(), Size: 1, Access: read}, vmm.ErrPermission},
		{"a closed stream", closed, vmm.Span{Addr: g.Ptr(), Size: 1, Access: read}, vmm.ErrClosed},
		{"no stream", nil, vmm.Span{Addr: g.Ptr(), Size: 1, Access: read}, vmm.ErrInvalid},
	} {
		unlock, err := c.on.LockSpans(vmm.Span{Addr: r.Ptr(), Size: page}, c.span)
		require.ErrorIs(t, err, c.want, c.name)
		if c.want == nil {
			unlock()
			continue
		}
		require.Nil(t, unlock, c.name)
		var op *vmm.OpError
		require.ErrorAs(t, err, &op, c.name)
	}
	open()
	require.NoError(t, r.Unmap(0, page), "nothing is left locked")
	vmm.SetNoWorker(d, false)
	for _, x := range []interface{ Close() error }{g, r, asleep, named, granted, full, gone, s, other, theirs, late} {
		require.NoError(t, x.Close())
	}
	w.end()
}

// TestLockSpansOfMany: after a bad one among many none is locked, unlock can be called by several
// goroutines, and the stream can be closed meanwhile.
func TestLockSpansOfMany(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s := stream(t, d)
	r := holed(t, w)
	good := vmm.Span{Addr: r.Ptr(), Size: page, Access: vmm.AccessRead}
	bad := vmm.Span{Addr: r.Ptr(), Size: 9 * page, Access: vmm.AccessRead}
	for n := range 8 {
		for at := -1; at < n; at++ {
			spans := make([]vmm.Span, n)
			for i := range spans {
				spans[i] = good
			}
			if at >= 0 {
				spans[at] = bad
			}
			unlock, err := s.LockSpans(spans...)
			if at >= 0 {
				require.ErrorIs(t, err, vmm.ErrBounds)
				continue
			}
			require.NoError(t, err)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(unlock)
			}
			wg.Wait()
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				unlock, err := s.LockSpans(good, good, good, good, good)
				if err != nil {
					return
				}
				go unlock()
			}
		})
	}
	require.NoError(t, s.Close())
	wg.Wait()
	require.NoError(t, r.Unmap(0, page))
	require.NoError(t, r.Close())
	w.end()
}

// TestLockSpansWhileAccessChanges: the access that goes is refused, the other is not.
func TestLockSpansWhileAccessChanges(t *testing.T) {
	s := stopAt(t, 2, "SyncIfActive|RecordContext", 1)
	g := ranged(t, s.world, page)
	require.NoError(t, g.Grant(vmm.AccessReadWrite, s.devs[1]))
	theirs := stream(t, s.devs[1])
	narrowed := make(chan error, 1)
	go func() { narrowed <- g.Grant(vmm.AccessRead, s.devs[1]) }()
	<-s.reached
	_, err := theirs.LockSpans(vmm.Span{Addr: g.Ptr(), Size: 1, Access: vmm.AccessReadWrite})
	require.ErrorIs(t, err, vmm.ErrBusy)
	unlock, err := theirs.LockSpans(vmm.Span{Addr: g.Ptr(), Size: 1, Access: vmm.AccessRead})
	require.NoError(t, err)
	unlock()
	s.let()
	require.NoError(t, <-narrowed)
	_, err = theirs.LockSpans(vmm.Span{Addr: g.Ptr(), Size: 1, Access: vmm.AccessReadWrite})
	require.ErrorIs(t, err, vmm.ErrPermission)
	require.NoError(t, theirs.Close())
	require.NoError(t, g.Close())
	s.end()
}

// TestStreamHold: Close lets nothing in any more, waits for release, and then for what
// was queued meanwhile.
func TestStreamHold(t *testing.T) {
	if onCUDA {
		t.Skip("the bubble's clock stands still while a call into the driver waits")
	}
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		g := ranged(t, w.world, page)
		s := stream(t, d)
		handle, capturing, release, err := s.Hold()
		require.NoError(t, err)
		require.Equal(t, s.Raw(), handle)
		require.False(t, capturing)
		_, _, second, err := s.Hold()
		require.NoError(t, err)
		closed := begun(s.Close)
		pass(time.Second)
		_, _, _, err = s.Hold()
		require.ErrorIs(t, err, vmm.ErrClosed)
		release()
		release()
		pass(time.Second)
		require.Empty(t, closed, "the other one holds it")
		open := work(t, d, handle, g.Ptr())
		second()
		pass(time.Second)
		require.Empty(t, closed, "the work is waited for")
		open()
		require.NoError(t, <-closed)
		require.NoError(t, d.Sync())
		_, _, _, err = s.Hold()
		require.ErrorIs(t, err, vmm.ErrClosed)
		_, _, _, err = (*vmm.Stream)(nil).Hold()
		require.ErrorIs(t, err, vmm.ErrInvalid)
		require.NoError(t, g.Close())
	})
}

// TestStreamHoldDuringACapture says so, and a Close that is refused lets others in again.
func TestStreamHoldDuringACapture(t *testing.T) {
	w := newWorld(t, 1)
	s := stream(t, w.devs[0])
	for _, want := range []bool{false, true, false} {
		end := func() {}
		if want {
			end = captured(t, w, s)
		}
		_, capturing, release, err := s.Hold()
		require.NoError(t, err)
		require.Equal(t, want, capturing)
		if want {
			closed := begun(s.Close)
			release()
			require.ErrorIs(t, <-closed, vmm.ErrCapturing)
		}
		release()
		end()
	}
	w.refuse("Capturing", 1, errInjected)
	_, _, _, err := s.Hold()
	require.ErrorIs(t, err, errInjected)
	require.NoError(t, s.Close(), "a Hold that failed keeps no Close waiting")
	w.end()
}

func TestFence(t *testing.T) {
	w := newWorld(t, 2)
	d, peer := w.devs[0], w.devs[1]
	g := ranged(t, w, page)
	s, later := stream(t, d), stream(t, peer)
	passed, err := s.Fence()
	require.NoError(t, err)
	open := queued(t, d, s, g.Ptr())
	f, err := s.Fence()
	require.NoError(t, err)
	require.NoError(t, passed.Sync())
	done, err := f.Done()
	require.NoError(t, err)
	require.False(t, done)
	require.NoError(t, later.WaitFence(vmm.Fence{}))
	require.NoError(t, later.WaitFence(passed))
	done, err = later.Done()
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, later.WaitFence(f))
	done, err = later.Done()
	require.NoError(t, err)
	require.False(t, done, "it waits for the other device's stream")
	synced := begun(f.Sync)
	require.Empty(t, synced)
	open()
	require.NoError(t, <-synced)
	require.NoError(t, later.Sync())
	done, err = f.Done()
	require.NoError(t, err)
	require.True(t, done)

	require.NoError(t, s.Close())
	require.ErrorIs(t, s.WaitFence(passed), vmm.ErrClosed)
	none, err := s.Fence()
	require.NoError(t, err, "Close has waited for the work")
	for _, f := range []vmm.Fence{none, {}} {
		done, err := f.Done()
		require.NoError(t, err)
		require.True(t, done)
		require.NoError(t, f.Sync())
		f.Free()
	}
	f.Free()
	passed.Free()
	_, err = (*vmm.Stream)(nil).Fence()
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, later.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestFenceOutlivesItsDevice, whose close has waited for the work, and another that is
// opened in its place.
func TestFenceOutlivesItsDevice(t *testing.T) {
	w := newWorld(t, 2)
	s, late := stream(t, w.devs[1]), stream(t, w.devs[0])
	f, err := s.Fence()
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, w.devs[1].Close())
	again, err := vmm.OpenDriver(w.drv, 1)
	require.NoError(t, err)
	s = stream(t, again)
	for _, on := range []*vmm.Stream{s, late} {
		done, err := f.Done()
		require.NoError(t, err)
		require.True(t, done)
		require.NoError(t, f.Sync())
		require.NoError(t, on.WaitFence(f))
		require.NoError(t, on.Close())
	}
	f.Free()
	require.NoError(t, again.Close())
	w.end()
}

func TestFenceOfAnotherDriver(t *testing.T) {
	w, x := newWorld(t, 1), worldOn(t, 1, host.Config{})
	s, theirs := stream(t, w.devs[0]), stream(t, x.devs[0])
	f, err := theirs.Fence()
	require.NoError(t, err)
	require.ErrorIs(t, s.WaitFence(f), vmm.ErrInvalid)
	f.Free()
	require.NoError(t, s.Close())
	require.NoError(t, theirs.Close())
	w.end()
	x.end()
}

// TestFenceUsesEventsAgain: there are as many as were in use at once.
func TestFenceUsesEventsAgain(t *testing.T) {
	w := newWorld(t, 1)
	s := stream(t, w.devs[0])
	var all [3]vmm.Fence
	for range 100 {
		for i := range all {
			var err error
			all[i], err = s.Fence()
			require.NoError(t, err)
		}
		for i := range all {
			all[i].Free()
		}
	}
	require.Equal(t, len(all), w.made("NewEvent"))
	require.Zero(t, w.made("FreeEvent"))
	for _, name := range []string{"Record", "NewEvent"} {
		w.refuse(name, 1, errInjected)
		f, err := s.Fence()
		if name == "Record" {
			require.ErrorIs(t, err, errInjected)
		}
		f.Free()
	}
	require.NoError(t, s.Close())
	w.end()
}

// TestFenceAllocatesNothing: all that is allocated is the host driver's.
func TestFenceAllocatesNothing(t *testing.T) {
	if lock.Ordered {
		t.Skip("the race detector's locks allocate")
	}
	d, err := vmm.OpenDriver(host.New(host.Config{}), 0)
	require.NoError(t, err)
	s := stream(t, d)
	dev := raw(t, d)
	e, err := dev.NewEvent(vmm.EventBlocking)
	require.NoError(t, err)
	driverOnly := testing.AllocsPerRun(100, func() {
		if err := dev.Record(e, s.Raw()); err != nil {
			t.Error(err)
		}
	})
	require.Equal(t, driverOnly, testing.AllocsPerRun(100, func() {
		f, err := s.Fence()
		if err != nil {
			t.Error(err)
		}
		f.Free()
	}))
	require.NoError(t, dev.FreeEvent(e))
	require.NoError(t, s.Close())
	require.NoError(t, d.Close())
}

func TestFenceDuringACapture(t *testing.T) {
	w := newWorld(t, 1)
	s := stream(t, w.devs[0])
	end := captured(t, w, s)
	f, err := s.Fence()
	require.ErrorIs(t, err, vmm.ErrCapturing)
	require.Equal(t, vmm.Fence{}, f)
	end()
	require.NoError(t, s.Close())
	w.end()
}

// TestHoldOfSpans: only the chunks that a span touches stay, each until its last hold
// is released.
func TestHoldOfSpans(t *testing.T) {
	w := newWorld(t, 1)
	r := holed(t, w)
	first, err := r.Hold(page/2, page)
	require.NoError(t, err)
	second, err := r.Hold(page, 2*page)
	require.NoError(t, err)
	none, err := r.Hold(9*page+1, 0)
	require.NoError(t, err)
	require.ErrorIs(t, r.Unmap(0, page), vmm.ErrBusy)
	require.ErrorIs(t, r.UnmapNow(0, page), vmm.ErrBusy)
	require.ErrorIs(t, r.Unmap(0, 3*page), vmm.ErrBusy)
	require.ErrorIs(t, r.Unmap(page, 2*page), vmm.ErrBusy)
	require.NoError(t, r.Unmap(8*page, 3*page), "it lies apart")
	require.ErrorIs(t, r.Close(), vmm.ErrBusy)
	first()
	first()
	require.NoError(t, r.Unmap(0, page))
	require.ErrorIs(t, r.Unmap(page, 2*page), vmm.ErrBusy)
	second()
	require.NoError(t, r.Unmap(page, 2*page))
	require.ErrorIs(t, r.Close(), vmm.ErrBusy, "a hold of no bytes")
	none()
	for _, x := range [][2]uint64{{math.MaxUint64, 2}, {1, math.MaxUint64}, {r.Size(), 1}, {r.Size() + 1, 0}} {
		_, err := r.Hold(x[0], x[1])
		require.ErrorIs(t, err, vmm.ErrBounds)
	}
	require.NoError(t, r.Close())
	_, err = r.Hold(0, 0)
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = (*vmm.Reservation)(nil).Hold(0, 0)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	w.end()
}

// TestHoldOfSpansInARange: Len stays at or above their ends; all else goes on.
func TestHoldOfSpansInARange(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, 4*page)
	long, err := g.Hold(page, page)
	require.NoError(t, err)
	short, err := g.Hold(0, 10)
	require.NoError(t, err)
	none, err := g.Hold(3*page, 0)
	require.NoError(t, err)
	require.NoError(t, g.SetLen(3*page))
	require.NoError(t, g.SetLen(2*page))
	require.ErrorIs(t, g.SetLen(2*page-1), vmm.ErrBusy)
	require.NoError(t, g.Clip())
	require.EqualValues(t, 2*page, g.Cap())
	require.NoError(t, g.Append(pattern(page, 1)))
	require.ErrorIs(t, vmm.Sleep(vmm.SleepDrop, g), vmm.ErrBusy)
	long()
	long()
	require.NoError(t, g.SetLen(10))
	require.ErrorIs(t, g.SetLen(9), vmm.ErrBusy)
	short()
	require.NoError(t, g.SetLen(0))
	ahead, err := g.Hold(2*page, page)
	require.NoError(t, err, "beyond Len, within Cap")
	require.ErrorIs(t, g.Clip(), vmm.ErrBusy)
	require.NoError(t, g.SetLen(10), "upwards, below a hold")
	require.NoError(t, g.SetLen(3*page))
	require.ErrorIs(t, g.SetLen(10), vmm.ErrBusy)
	ahead()
	require.NoError(t, g.SetLen(0))
	require.ErrorIs(t, g.Close(), vmm.ErrBusy, "a hold of no bytes")
	none()
	for _, x := range [][2]uint64{{math.MaxUint64, 2}, {1, math.MaxUint64}, {0, g.Cap() + 1}} {
		_, err := g.Hold(x[0], x[1])
		require.ErrorIs(t, err, vmm.ErrBounds)
	}
	r, _, ok := w.devs[0].Lookup(g.Ptr())
	require.True(t, ok)
	_, err = r.Hold(0, 0)
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.NoError(t, vmm.Sleep(vmm.SleepDrop, g))
	_, err = g.Hold(0, 0)
	require.ErrorIs(t, err, vmm.ErrAsleep)
	require.NoError(t, g.Close())
	_, err = g.Hold(0, 0)
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = (*vmm.Range)(nil).Hold(0, 0)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	w.end()
}

// queued is work on s; a test that fails lets it run, or its cleanup waits for ever.
func queued(t *testing.T, d *vmm.Device, s *vmm.Stream, p vmm.Ptr) (open func()) {
	t.Helper()
	open = work(t, d, s.Raw(), p)
	t.Cleanup(func() {
		if t.Failed() {
			open()
		}
	})
	return open
}
