package vmm_test

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// What is tested here is UnmapAfter, beside everything else that takes memory away.

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

// TestUnmapAfter returns at once; the chunks go when the stream is done, whatever UsedBy
// has named.
func TestUnmapAfter(t *testing.T) {
	if onCUDA {
		t.Skip("the bubble's clock stands still while a call into the driver waits")
	}
	for _, named := range []string{"nothing", "the stream", "another stream"} {
		t.Run(named, func(t *testing.T) {
			bubble(t, 1, func(t *testing.T, w *paced) {
				d := w.devs[0]
				r, c := holed(t, w.world), chunk(t, w.world, page)
				s, other := stream(t, d), stream(t, d)
				switch named {
				case "the stream":
					require.NoError(t, r.UsedBy(s))
				case "another stream":
					require.NoError(t, r.UsedBy(other))
				}
				gen := r.Generation()
				open := queued(t, d, s, r.Ptr()+8*page)
				unrelated := queued(t, d, other, r.Ptr())
				require.NoError(t, r.UnmapAfter(8*page, 3*page, s))
				pass(time.Second)
				require.EqualValues(t, 3*page, d.Stats().Retiring)
				require.EqualValues(t, 7*page, d.Stats().Committed)
				require.Equal(t, gen, r.Generation())
				require.Zero(t, w.made("Unmap"))
				require.ErrorIs(t, r.Map(9*page, c), vmm.ErrBusy)
				require.ErrorIs(t, r.Unmap(8*page, page), vmm.ErrBusy)
				require.ErrorIs(t, r.UnmapAfter(8*page, page, s), vmm.ErrBusy)
				_, err := r.Hold(10*page, 1)
				require.ErrorIs(t, err, vmm.ErrBusy)
				require.ErrorIs(t, d.Close(), vmm.ErrBusy)
				opened := begun(func() error { open(); return nil }) // its end waits for the whole device
				pass(100 * time.Millisecond)
				require.Zero(t, d.Stats().Retiring)
				require.EqualValues(t, 4*page, d.Stats().Committed)
				require.Equal(t, gen+1, r.Generation())
				require.Equal(t, 1, w.made("Unmap"))
				require.NoError(t, r.Map(9*page, c))
				unrelated()
				require.NoError(t, <-opened)
				require.NoError(t, d.Sync(), "the device is well")
				require.NoError(t, c.Close())
				require.NoError(t, r.Close())
				require.NoError(t, s.Close())
				require.NoError(t, other.Close())
			})
		})
	}
}

// TestUnmapAfterTheWrongStream is the negative control of the test above: the promise
// is the caller's.
func TestUnmapAfterTheWrongStream(t *testing.T) {
	mayLose(t)
	w := newWorld(t, 1)
	d := w.devs[0]
	vmm.SetNoWorker(d, true)
	r := holed(t, w)
	open := work(t, d, stream(t, d).Raw(), r.Ptr())
	require.NoError(t, r.UnmapAfter(0, page, stream(t, d)))
	for d.Stats().Retiring > 0 {
		require.NoError(t, vmm.Drain(d))
	}
	open()
	require.ErrorIs(t, d.Sync(), vmm.ErrDeviceLost)
	_ = r.Close()
}

// TestUnmapAfterRefuses what Unmap refuses, and streams that it cannot wait for; nothing
// has changed then.
func TestUnmapAfterRefuses(t *testing.T) {
	w, x := newWorld(t, 1), worldOn(t, 1, host.Config{})
	d := w.devs[0]
	r, g := holed(t, w), ranged(t, w, page)
	s, closed, theirs := stream(t, d), stream(t, d), stream(t, x.devs[0])
	require.NoError(t, closed.Close())
	inner, _, _ := d.Lookup(g.Ptr())
	release, err := r.Hold(8*page, 1)
	require.NoError(t, err)
	before := w.picture(r)
	for name, c := range map[string]struct {
		r         *vmm.Reservation
		off, size uint64
		on        *vmm.Stream
		want      error
	}{
		"part of a chunk":   {r, page, page, s, vmm.ErrInvalid},
		"a hole":            {r, 0, 4 * page, s, vmm.ErrInvalid},
		"nothing":           {r, 0, 0, s, vmm.ErrBounds},
		"too much":          {r, 0, 1 << 63, s, vmm.ErrBounds},
		"what is held":      {r, 8 * page, 3 * page, s, vmm.ErrBusy},
		"a range's":         {inner, 0, page, s, vmm.ErrBusy},
		"a closed stream":   {r, 0, page, closed, vmm.ErrClosed},
		"no stream":         {r, 0, page, nil, vmm.ErrInvalid},
		"another driver's":  {r, 0, page, theirs, vmm.ErrInvalid},
		"of no reservation": {nil, 0, page, s, vmm.ErrInvalid},
	} {
		require.ErrorIs(t, c.r.UnmapAfter(c.off, c.size, c.on), c.want, name)
	}
	end := captured(t, w, s)
	require.ErrorIs(t, r.UnmapAfter(0, page, s), vmm.ErrCapturing)
	end()
	require.Equal(t, before, w.picture(r))
	require.Zero(t, d.Stats().Retiring)
	release()
	require.NoError(t, r.UnmapAfter(8*page, 3*page, s))
	require.NoError(t, s.Close())
	require.NoError(t, theirs.Close())
	require.NoError(t, r.Close())
	require.NoError(t, g.Close())
	w.end()
	x.end()
}

// TestUnmapAfterWaitsForAForeignStream, which takes no event of ours.
func TestUnmapAfterWaitsForAForeignStream(t *testing.T) {
	if onCUDA {
		t.Skip("the bubble's clock stands still while a call into the driver waits")
	}
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		r, s := holed(t, w.world), stream(t, d)
		open := queued(t, d, s, r.Ptr())
		vmm.SetForeign(s, true)
		w.refuse("Record", 2, vmm.ErrInvalid)
		unmapped := begun(func() error { return r.UnmapAfter(0, page, s) })
		pass(time.Second)
		require.Empty(t, unmapped)
		vmm.SetForeign(s, false)
		open()
		require.NoError(t, <-unmapped)
		require.Zero(t, d.Stats().Retiring)
		require.NoError(t, d.Sync(), "the device is well")
		require.NoError(t, r.Close())
		require.NoError(t, s.Close())
	})
}

// TestCloseDuringUnmapAfter waits for the stream; the stream's own Close does, too.
func TestCloseDuringUnmapAfter(t *testing.T) {
	if onCUDA {
		t.Skip("the bubble's clock stands still while a call into the driver waits")
	}
	for name, both := range map[string][2]func(r *vmm.Reservation, s *vmm.Stream) error{
		"reservation first": {
			func(r *vmm.Reservation, _ *vmm.Stream) error { return r.Close() },
			func(_ *vmm.Reservation, s *vmm.Stream) error { return s.Close() }},
		"stream first": {
			func(_ *vmm.Reservation, s *vmm.Stream) error { return s.Close() },
			func(r *vmm.Reservation, _ *vmm.Stream) error { return r.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, func(t *testing.T, w *paced) {
				d := w.devs[0]
				r, s := holed(t, w.world), stream(t, d)
				open := queued(t, d, s, r.Ptr())
				require.NoError(t, r.UnmapAfter(0, 3*page, s))
				first := begun(func() error { return both[0](r, s) })
				pass(time.Second)
				require.Empty(t, first)
				require.Zero(t, w.made("Unmap"))
				open()
				require.NoError(t, <-first)
				require.NoError(t, both[1](r, s))
				require.NoError(t, d.Sync(), "the device is well")
			})
		})
	}
}

// TestMemoryOfUnmapAfterComesBeforePressure, once its stream is done.
func TestMemoryOfUnmapAfterComesBeforePressure(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	vmm.SetNoWorker(d, true)
	r, s := holed(t, w), stream(t, d)
	d.SetLimit(6 * page)
	stop := d.OnPressure(func(error) bool { t.Error("not needed"); return false })
	defer stop()
	require.NoError(t, r.UnmapAfter(0, 3*page, s))
	require.NoError(t, s.Sync())
	c := chunk(t, w, 3*page)
	require.NoError(t, c.Close())
	vmm.SetNoWorker(d, false)
	require.NoError(t, r.Close())
	require.NoError(t, s.Close())
	w.end()
}

// TestFaultsOfUnmapAfter fails each driver call, and each two: nothing has changed if it
// returns an error, else the chunks go in the end.
func TestFaultsOfUnmapAfter(t *testing.T) {
	once := func(t *testing.T, at ...int) (calls int) {
		w := unstaged(t)
		d := w.devs[0]
		vmm.SetNoWorker(d, true)
		r, s, theirs := holed(t, w), stream(t, d), stream(t, w.devs[1])
		require.NoError(t, r.Grant(vmm.AccessReadWrite, w.devs[1]))
		before := w.picture(r)
		raw(t, w.devs[1])
		w.arm(at...)
		err := r.UnmapAfter(8*page, 3*page, s, theirs)
		later := vmm.Drain(d)
		calls = len(w.disarm())
		if err != nil {
			isInjected(w, err)
			require.Equal(t, before, w.picture(r), "%v", at)
			require.Zero(t, d.Stats().Retiring, "%v", at)
			require.NoError(t, r.UnmapAfter(8*page, 3*page, s, theirs), "%v", at)
		} else if later != nil {
			require.ErrorIs(t, later, errInjected, "%v", at)
			require.EqualValues(t, 3*page, d.Stats().Retiring, "%v", at)
		}
		require.NoError(t, s.Sync())
		require.NoError(t, theirs.Sync())
		require.NoError(t, vmm.Drain(d), "%v", at)
		require.Zero(t, d.Stats().Retiring, "%v", at)
		if d.Stats().Quarantined > 0 { // Release
			_, err := d.Trim(0)
			require.NoError(t, err)
		}
		require.EqualValues(t, 3*page, d.Stats().Committed, "%v", at)
		c := chunk(t, w, 3*page)
		require.NoError(t, r.Map(8*page, c), "%v", at)
		for _, x := range []interface{ Close() error }{c, r, s, theirs} {
			require.NoError(t, x.Close(), "%v", at)
		}
		vmm.SetNoWorker(d, false)
		w.end()
		return calls
	}
	calls := once(t)
	require.Greater(t, calls, 5)
	for i := 1; i <= calls; i++ {
		for j := i + 1; j <= once(t, i); j++ {
			once(t, i, j)
		}
	}
}

// TestUnmapAfterInNoOrder: what waits for a slow stream does not keep what another
// stream has done with, and nor does an unmap that fails.
func TestUnmapAfterInNoOrder(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	vmm.SetNoWorker(d, true)
	r := holed(t, w)
	slow, fast := stream(t, d), stream(t, d)
	open := queued(t, d, slow, r.Ptr())
	require.NoError(t, r.UnmapAfter(0, page, slow))
	require.NoError(t, r.UnmapAfter(page, 2*page, fast))
	require.NoError(t, r.UnmapAfter(8*page, page, slow))
	require.NoError(t, r.UnmapAfter(9*page, 2*page, fast))
	require.NoError(t, fast.Sync())
	w.refuse("Unmap", 1, errInjected)
	require.ErrorIs(t, vmm.Drain(d), errInjected)
	require.EqualValues(t, 4*page, d.Stats().Retiring)
	require.NoError(t, vmm.Drain(d))
	require.EqualValues(t, 2*page, d.Stats().Retiring)
	open()
	require.NoError(t, vmm.Drain(d))
	require.Zero(t, d.Stats().Retiring)
	vmm.SetNoWorker(d, false)
	require.NoError(t, r.Close())
	require.NoError(t, slow.Close())
	require.NoError(t, fast.Close())
	w.end()
}

// TestUnmapAfterDuringAnUnmap: the Unmap's wait began before the work that UnmapAfter
// waits for was queued, so it does not stand for it.
func TestUnmapAfterDuringAnUnmap(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	vmm.SetNoWorker(d, true)
	r := holed(t, w)
	s := stream(t, d)
	require.NoError(t, r.UsedBy(s))
	h := haltAt(w, func(c drivertest.Call) bool { return c.Name == "SyncEvent" })
	h.armed.Store(true)
	unmapped := make(chan error, 1)
	go func() { unmapped <- r.Unmap(8*page, 3*page) }()
	<-h.reached
	open := queued(t, d, s, r.Ptr())
	require.NoError(t, r.UnmapAfter(0, page, s))
	h.let()
	require.NoError(t, <-unmapped)
	require.EqualValues(t, page, d.Stats().Retiring)
	open()
	require.NoError(t, d.Sync(), "the device is well")
	require.NoError(t, vmm.Drain(d))
	require.Zero(t, d.Stats().Retiring)
	vmm.SetNoWorker(d, false)
	require.NoError(t, r.Close())
	require.NoError(t, s.Close())
	w.end()
}

// TestUnmapAfterOfAStreamThatUsedByLeftOut: what takes the same memory away before
// the stream is done waits for it, though UsedBy has named another one.
func TestUnmapAfterOfAStreamThatUsedByLeftOut(t *testing.T) {
	if onCUDA {
		t.Skip("the bubble's clock stands still while a call into the driver waits")
	}
	for name, take := range map[string]func(w *world, r *vmm.Reservation) error{
		"close":  func(_ *world, r *vmm.Reservation) error { return r.Close() },
		"revoke": func(w *world, r *vmm.Reservation) error { return r.Revoke(w.devs[1]) },
		"narrow": func(w *world, r *vmm.Reservation) error { return r.Grant(vmm.AccessRead, w.devs[1]) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 2, func(t *testing.T, w *paced) {
				d, peer := w.devs[0], w.devs[1]
				r := holed(t, w.world)
				require.NoError(t, r.Grant(vmm.AccessReadWrite, peer))
				named, other := stream(t, d), stream(t, peer)
				require.NoError(t, r.UsedBy(named))
				open := queued(t, peer, other, r.Ptr())
				require.NoError(t, r.UnmapAfter(0, page, other, other))
				taken := begun(func() error { return take(w.world, r) })
				pass(time.Second)
				require.Empty(t, taken)
				require.Zero(t, w.made("Unmap"))
				open()
				require.NoError(t, <-taken)
				require.NoError(t, peer.Sync(), "the device is well")
				pass(100 * time.Millisecond)
				require.Zero(t, d.Stats().Retiring)
				require.NoError(t, r.Close())
				require.NoError(t, named.Close())
				require.NoError(t, other.Close())
			})
		})
	}
}

// TestNoWorkLosesItsMemory: launches, pools, ranges that sleep and grow and streams that come and
// go, all on the same memory. No work loses its memory, and none of it is left at the
// end. VMM_RANDOM_SECONDS is how long it runs.
func TestNoWorkLosesItsMemory(t *testing.T) {
	w := worldWith(t, 2, func(drivertest.Call) {
		if rand.IntN(4) == 0 { // so that others come between two calls
			runtime.Gosched()
		}
	})
	d, peer := w.devs[0], w.devs[1]
	d.SetLimit(40 * page)
	d.SetReleaseThreshold(4 * page)
	const slots = 16
	r, err := d.Reserve(slots*page, vmm.ReserveOptions{})
	require.NoError(t, err)
	g, h := newRange(t, d, vmm.RangeOptions{Max: 32 * page, Chunk: page, GrowAhead: 2 * page}), ranged(t, w, page)
	require.NoError(t, r.Grant(vmm.AccessReadWrite, peer))
	streams := []*vmm.Stream{stream(t, d), stream(t, d), stream(t, peer)}
	require.NoError(t, g.UsedBy(streams[:2]...))
	require.NoError(t, r.UsedBy(streams[0])) // the others are used only with UnmapAfter
	anyOf := func(n int) *vmm.Stream { return streams[rand.IntN(n)] }

	// launch queues work of its own on memory that it has locked.
	launch := func(s *vmm.Stream, dev *vmm.Device, spans ...vmm.Span) error {
		handle, _, release, err := s.Hold()
		if err != nil {
			return err
		}
		defer release()
		unlock, err := s.LockSpans(spans...)
		if err != nil {
			return err
		}
		defer unlock()
		o, err := dev.Raw()
		for _, x := range spans {
			if err == nil {
				err = o.Fill(x.Addr, uint32(rand.IntN(256)), 1, x.Size, handle)
			}
		}
		return err
	}
	slot := func() uint64 { return uint64(rand.IntN(slots)) * page }
	jobs := []func() error{
		func() error { return g.Append(pattern(page/2, 1)) },
		func() error { return g.AppendOn(anyOf(2), pattern(page/3, 1)) },
		func() error { return g.SetLen(g.Len() / 2) },
		func() error { return errors.Join(g.Clip(), h.Clip()) },
		func() error { return h.Grow(uint64(rand.IntN(4)) * page) },
		func() error {
			return launch(anyOf(2), d, vmm.Span{Addr: g.Ptr(), Size: page, Access: vmm.AccessReadWrite},
				vmm.Span{Addr: h.Ptr(), Size: 1, Access: vmm.AccessReadWrite})
		},
		func() error {
			return launch(streams[0], d, vmm.Span{Addr: r.Ptr() + vmm.Ptr(slot()), Size: page, Access: vmm.AccessReadWrite})
		},
		func() error { // a pool: its other stream is one that UsedBy does not know
			off := slot()
			c, err := d.Create(page, vmm.Prop{})
			if err != nil {
				return err
			}
			defer c.Close() //nolint:errcheck // the world's end sees it
			if err := r.Map(off, c); err != nil {
				return err
			}
			return r.UnmapAfter(off, page, streams...)
		},
		func() error { return r.UnmapAfter(slot(), page, streams...) },
		func() error { return r.Unmap(slot(), page) },
		func() error {
			c, err := d.Create(page, vmm.Prop{})
			if err != nil {
				return err
			}
			return errors.Join(r.Map(slot(), c), c.Close())
		},
		func() error { return errors.Join(r.Grant(vmm.AccessRead, peer), r.Grant(vmm.AccessReadWrite, peer)) },
		func() error {
			f, err := anyOf(3).Fence()
			if err != nil {
				return err
			}
			defer f.Free()
			err = anyOf(3).WaitFence(f)
			if _, again := f.Done(); err == nil {
				err = again
			}
			if rand.IntN(4) == 0 {
				err = errors.Join(err, f.Sync())
			}
			return err
		},
		func() error {
			defer runtime.Gosched()
			return errors.Join(vmm.Sleep(vmm.SleepMode(rand.IntN(2)), g, h), vmm.Wake(h, g))
		},
		func() error { return vmm.Wake(g, h) },
		func() error {
			a, err := r.Hold(slot(), page)
			b, again := g.Hold(0, min(g.Len(), 1))
			runtime.Gosched()
			for _, release := range []func(){a, b} {
				if release != nil {
					release()
				}
			}
			return errors.Join(err, again)
		},
		func() error {
			stop := d.OnPressure(func(error) bool {
				return g.Clip() == nil && r.UnmapAfter(slot(), page, streams...) == nil
			})
			defer stop()
			c, err := d.Alloc(uint64(1+rand.IntN(16)) * page)
			return errors.Join(err, c.Close())
		},
		func() error { // one that closes while its chunks retire
			own, err := d.Reserve(4*page, vmm.ReserveOptions{})
			if err != nil {
				return err
			}
			c, err := d.Create(page, vmm.Prop{})
			if err == nil {
				s := anyOf(2)
				err = errors.Join(own.UsedBy(streams[0]), own.Map(0, c), c.Close())
				if err == nil {
					o, _ := d.Raw()
					err = errors.Join(o.Fill(own.Ptr(), 1, 1, page, s.Raw()), own.UnmapAfter(0, page, s))
				}
			}
			return errors.Join(err, own.Close())
		},
		func() error {
			s, err := d.NewStream()
			if err != nil {
				return err
			}
			var all sync.WaitGroup
			all.Go(func() { _ = launch(s, d, vmm.Span{Addr: h.Ptr(), Size: 1, Access: vmm.AccessReadWrite}) })
			err = s.Close()
			all.Wait()
			return err
		},
		func() error { d.Stats(); g.Stats(); d.Report(); _, err := d.Trim(page); return err },
	}
	var all sync.WaitGroup
	var stop atomic.Bool
	worked := make([]atomic.Int32, len(jobs))
	for i, job := range jobs {
		all.Go(func() {
			for !stop.Load() {
				err := job()
				if err == nil {
					worked[i].Add(1)
				}
				for _, fine := range []error{nil, vmm.ErrBusy, vmm.ErrBounds, vmm.ErrAsleep, vmm.ErrInvalid, vmm.ErrFull, vmm.ErrOutOfMemory, vmm.ErrClosed} {
					if errors.Is(err, fine) {
						err = nil
					}
				}
				if err != nil {
					t.Error(i, err)
					return
				}
				<-time.After(time.Duration(rand.IntN(100)) * time.Microsecond) // the processors are for all
			}
		})
	}
	<-time.After(atRandom(2 * time.Second))
	for i := range worked {
		assert.Eventually(t, func() bool { return worked[i].Load() > 0 || t.Failed() }, time.Minute, time.Millisecond, "job %d never came through", i)
	}
	stop.Store(true)
	all.Wait()
	require.NoError(t, d.Sync(), "the device is well")
	require.NoError(t, peer.Sync())
	require.NoError(t, vmm.Wake(g, h))
	for _, x := range []interface{ Close() error }{g, h, r, streams[0], streams[1], streams[2]} {
		require.NoError(t, x.Close())
	}
	w.end()
}
