package vmm_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// queuedClip returns a range of three pages, the last two retiring behind a gate of a stream
// that it named.
func queuedClip(t *testing.T, w *world) (g *vmm.Range, s *vmm.Stream, open func()) {
	t.Helper()
	g = ranged(t, w, 3*page)
	s = stream(t, w.devs[0])
	require.NoError(t, g.UsedBy(s))
	open = work(t, w.devs[0], s.Raw(), g.Ptr()+2*page)
	t.Cleanup(func() {
		if t.Failed() { // else the stream's cleanup waits for ever
			open()
		}
	})
	require.NoError(t, g.SetLen(page))
	require.NoError(t, g.Clip(), "it does not wait")
	require.EqualValues(t, page, g.Cap())
	require.EqualValues(t, 2*page, g.Stats().Retiring)
	require.EqualValues(t, 2*page, w.devs[0].Stats().Retiring)
	require.EqualValues(t, 3*page, g.Stats().Committed)
	return g, s, open
}

func TestQueuedClip(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		g, s, open := queuedClip(t, w.world)
		gen := g.Generation()
		pass(time.Second)
		require.EqualValues(t, 2*page, d.Stats().Retiring, "the work still runs")
		require.Zero(t, w.made("Unmap"))
		open()
		pass(32 * time.Millisecond)
		require.Zero(t, d.Stats().Retiring)
		require.EqualValues(t, page, d.Stats().Committed)
		require.Equal(t, 1, w.made("Unmap"), "all of it at once")
		require.Equal(t, gen+1, g.Generation())
		pass(50 * time.Millisecond)
		running, _ := vmm.Working(d)
		require.False(t, running)
		require.NoError(t, d.Sync(), "the device is well")
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
	})
}

// TestTheGoroutineRestsLonger and longer while there is nothing to do.
func TestTheGoroutineRestsLonger(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		w.noting("Done")
		start := time.Now()
		g, s, open := queuedClip(t, w.world)
		pass(100 * time.Millisecond)
		gaps := w.gaps(start)
		const ms = time.Millisecond
		require.Equal(t, []time.Duration{4 * ms, 8 * ms, 16 * ms, 32 * ms, 32 * ms}, gaps)
		open()
		pass(32 * ms)
		require.Zero(t, g.Stats().Retiring)
		require.Less(t, w.devs[0].Stats().WorkTime, ms, "it rests most of the time")
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
	})
}

// TestGrowthReclaimsRetiringMemory without a driver call, as far as it needs. The rest is
// unmapped as before.
func TestGrowthReclaimsRetiringMemory(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		g, s, open := queuedClip(t, w.world)
		w.arm()
		require.NoError(t, g.Grow(page))
		require.Empty(t, w.disarm())
		require.EqualValues(t, 2*page, g.Cap())
		require.EqualValues(t, page, d.Stats().Reclaimed)
		require.EqualValues(t, page, g.Stats().Reclaimed)
		require.EqualValues(t, page, g.Stats().Retiring)
		require.NoError(t, g.Clip(), "and retires again")
		require.EqualValues(t, 2*page, g.Stats().Retiring)
		require.NoError(t, g.Grow(page))
		open()
		pass(100 * time.Millisecond)
		require.EqualValues(t, 2*page, g.Cap(), "what was taken back stays")
		require.Zero(t, g.Stats().Retiring)
		require.EqualValues(t, 2*page, d.Stats().Committed)
		require.NoError(t, g.Append(pattern(2*page, 1)))
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
	})
}

// TestGrowthBesideTheUnmap: memory that is being unmapped cannot be reclaimed, and the
// growth maps new memory above it. If the unmap fails, the memory is reclaimed after all.
func TestGrowthBesideTheUnmap(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprint(fails), func(t *testing.T) {
			bubble(t, 1, func(t *testing.T, w *paced) {
				d := w.devs[0]
				g, s, open := queuedClip(t, w.world)
				open()
				let := w.stopNext("Unmap")
				if fails {
					w.refuse("Unmap", 1, errInjected)
				}
				pass(32 * time.Millisecond)
				done := begun(func() error { return g.Grow(4 * page) })
				let()
				require.NoError(t, <-done)
				pass(32 * time.Millisecond)
				require.EqualValues(t, 5*page, g.Cap())
				require.EqualValues(t, 5*page, d.Stats().Committed)
				require.Zero(t, d.Stats().Retiring)
				require.NoError(t, g.Append(pattern(4*page, 1)))
				require.NoError(t, s.Close())
				require.NoError(t, g.Close())
			})
		})
	}
}

// TestRetirementsEndInOrder: the later one has the lower addresses.
func TestRetirementsEndInOrder(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		vmm.SetNoWorker(d, true)
		g := ranged(t, w.world, 6*page)
		s := stream(t, d)
		require.NoError(t, g.UsedBy(s))
		for _, n := range []uint64{4, 2, 1} {
			require.NoError(t, g.SetLen(n*page))
			require.NoError(t, g.Clip())
		}
		require.EqualValues(t, 5*page, g.Stats().Retiring)
		for range 3 {
			w.refuse("Unmap", 1, errInjected)
			require.ErrorIs(t, vmm.Drain(d), errInjected)
			require.EqualValues(t, 5*page, g.Stats().Retiring, "what lies in front waits")
		}
		w.refuse("Unmap", 0, nil)
		w.arm(0)
		require.NoError(t, vmm.Drain(d))
		require.Zero(t, g.Stats().Retiring)
		require.Len(t, slices.DeleteFunc(w.disarm(), func(s string) bool { return s != "Unmap" }), 3)
		require.NoError(t, g.Append(pattern(5*page, 1)))
		vmm.SetNoWorker(d, false)
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
	})
}

// TestAFailedUnmapIsTriedAgain by the goroutine, and so is a failed check.
func TestAFailedUnmapIsTriedAgain(t *testing.T) {
	for _, name := range []string{"Done", "Unmap"} {
		bubble(t, 1, func(t *testing.T, w *paced) {
			g, s, open := queuedClip(t, w.world)
			open()
			w.refuse(name, 3, errInjected)
			pass(3 * time.Millisecond)
			require.EqualValues(t, 2*page, g.Stats().Retiring)
			pass(100 * time.Millisecond)
			require.Zero(t, g.Stats().Retiring)
			require.Zero(t, w.devs[0].Stats().Quarantined)
			require.NoError(t, s.Close())
			require.NoError(t, g.Close())
		})
	}
}

// TestTrimUnmapsWhatWaitsNoLonger at once, and nothing else.
func TestTrimUnmapsWhatWaitsNoLonger(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		g, s, open := queuedClip(t, w.world)
		freed, err := d.Trim(0)
		require.NoError(t, err)
		require.Zero(t, freed)
		require.EqualValues(t, 2*page, d.Stats().Retiring)
		open()
		now := time.Now()
		freed, err = d.Trim(0)
		require.NoError(t, err)
		require.EqualValues(t, 2*page, freed)
		require.Zero(t, d.Stats().Retiring)
		require.Equal(t, now, time.Now())

		d.SetReleaseThreshold(8 * page)
		require.NoError(t, g.Grow(page))
		require.NoError(t, g.Clip())
		freed, err = d.Trim(8 * page)
		require.NoError(t, err)
		require.Zero(t, freed, "it is kept now")
		require.EqualValues(t, page, d.Stats().Cached)
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
	})
}

// TestRetiringMemoryIsReleasedWhenMemoryRunsOut, if its wait is over.
func TestRetiringMemoryIsReleasedWhenMemoryRunsOut(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		again, err := vmm.OpenDriver(w.drv, 0)
		require.NoError(t, err)
		d.SetLimit(3 * page)
		g, s, open := queuedClip(t, w.world)
		_, err = again.Create(page, vmm.Prop{})
		require.ErrorIs(t, err, vmm.ErrOutOfMemory, "work still uses it")
		require.EqualValues(t, 2*page, g.Stats().Retiring)
		open()
		c, err := again.Create(2*page, vmm.Prop{})
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, again.Close())
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
	})
}

// TestCloseWaitsForRetiringMemory. CloseContext may stop waiting, and Device.Close joins.
func TestCloseWaitsForRetiringMemory(t *testing.T) {
	if onCUDA {
		t.Skip("the bubble's clock stands still while a call into the driver waits")
	}
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		g, s, open := queuedClip(t, w.world)
		require.ErrorIs(t, d.Close(), vmm.ErrBusy)
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := begun(func() error { return g.CloseContext(ctx) })
		pass(time.Second)
		require.Empty(t, gaveUp)
		require.Zero(t, w.made("Unmap"))
		cancel()
		require.ErrorIs(t, <-gaveUp, context.Canceled)
		closed := begun(d.Close)
		pass(time.Second)
		require.Empty(t, closed, "it joins")
		open()
		require.ErrorIs(t, <-closed, vmm.ErrBusy, "the stream is open still")
		require.Zero(t, d.Stats().Committed)
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
	})
}

func TestTwoDevicesOnOneOrdinal(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		again, err := vmm.OpenDriver(w.drv, 0)
		require.NoError(t, err)
		g, s, open := queuedClip(t, w.world)
		h := ahead(t, again)
		require.NoError(t, h.UsedBy(s)) // a stream of the other Device, of the same context
		require.NoError(t, h.SetLen(page))
		require.NoError(t, h.Clip())
		pass(time.Second)
		require.EqualValues(t, 2*page, d.Stats().Retiring)
		require.EqualValues(t, 3*page, again.Stats().Retiring, "the named stream's gate is closed")
		open()
		pass(32 * time.Millisecond)
		require.Zero(t, d.Stats().Retiring)
		require.Zero(t, again.Stats().Retiring)
		require.NoError(t, h.Close())
		require.NoError(t, again.Close())
		require.NoError(t, g.Append([]byte{1}))
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
	})
}

// TestAPeerClosesBeforeTheRetirement has ended: the events on the peer's streams count as
// reached, and are freed before its context is.
func TestAPeerClosesBeforeTheRetirement(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *paced) {
		d, peer := w.devs[0], w.devs[1]
		vmm.SetNoWorker(d, true)
		g := ranged(t, w.world, 3*page)
		require.NoError(t, g.Grant(vmm.AccessRead, peer))
		require.NoError(t, peer.CopyOut(make([]byte, page), g.Ptr()))
		s := stream(t, peer)
		require.NoError(t, g.UsedBy(s))
		require.NoError(t, g.SetLen(page))
		require.NoError(t, g.Clip())
		require.NoError(t, s.Close())
		require.NoError(t, g.Revoke(peer))
		require.EqualValues(t, 2*page, g.Stats().Retiring)
		require.NoError(t, peer.Close())
		require.NoError(t, vmm.Drain(d))
		require.Zero(t, g.Stats().Retiring)
		vmm.SetNoWorker(d, false)
		require.NoError(t, g.Close())
	})
}

// TestTwoPeersCloseAtOnce, the last of their context: one of them frees the events,
// whichever is last.
func TestTwoPeersCloseAtOnce(t *testing.T) {
	rounds := 100
	if onCUDA {
		rounds = 4 // each makes two contexts
	}
	for range rounds {
		w := newWorld(t, 2)
		d, peer := w.devs[0], w.devs[1]
		again, err := vmm.OpenDriver(w.drv, 1)
		require.NoError(t, err)
		vmm.SetNoWorker(d, true)
		g := ranged(t, w, 3*page)
		s := stream(t, peer)
		require.NoError(t, g.UsedBy(s))
		require.NoError(t, g.SetLen(page))
		require.NoError(t, g.Clip())
		require.NoError(t, s.Close())
		done := make(chan error, 2)
		for _, d := range []*vmm.Device{peer, again} {
			go func() { done <- d.Close() }()
		}
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		require.NoError(t, vmm.Drain(d))
		require.NoError(t, g.Close())
		w.end()
	}
}

// TestAnotherContextsStreamComesAfterAQueuedClip: events do not work for it, so that clip
// waits, and with it all memory that retired before.
func TestAnotherContextsStreamComesAfterAQueuedClip(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		vmm.SetNoWorker(d, true)
		g := ranged(t, w.world, 4*page)
		s := stream(t, d)
		require.NoError(t, g.UsedBy(s))
		require.NoError(t, g.SetLen(2*page))
		require.NoError(t, g.Clip())
		require.EqualValues(t, 2*page, g.Stats().Retiring)
		vmm.SetForeign(s, true)
		require.NoError(t, g.SetLen(page))
		w.refuse("Record", 1, vmm.ErrInvalid)
		require.NoError(t, g.Clip())
		vmm.SetForeign(s, false)
		require.NoError(t, g.Grow(3*page), "there is no hole in front of what retires")
		require.NoError(t, g.Append(pattern(3*page, 1)))
		vmm.SetNoWorker(d, false)
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
	})
}

// TestClipDuringACapture of a named stream changes nothing.
func TestClipDuringACapture(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, page)
	require.NoError(t, g.Grow(3*page))
	s := stream(t, w.devs[0])
	require.NoError(t, g.UsedBy(s))
	before := w.picture(g)
	end := captured(t, w, s)
	require.ErrorIs(t, g.Clip(), vmm.ErrCapturing)
	end()
	require.Equal(t, before, w.picture(g))
	require.Zero(t, w.devs[0].Stats().Retiring)
	require.NoError(t, g.Clip())
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestReclaimedMemoryLeavesNothing: a clip that a growth undoes behind a busy stream leaves
// no retirement and makes no event of its own.
func TestReclaimedMemoryLeavesNothing(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, page)
	s := stream(t, w.devs[0])
	require.NoError(t, g.UsedBy(s))
	open := gate(t, w.devs[0], s.Raw())
	before := w.made("NewEvent")
	rounds := testgate.Effort(500, 5000, 5000)
	if onCUDA { // behind a stream that waits, an H100 had room for less than 400 records; the next blocks
		rounds = 50
	}
	for range rounds {
		require.NoError(t, g.Append(pattern(page, 1)))
		require.NoError(t, g.SetLen(page))
		require.NoError(t, g.Clip())
	}
	require.LessOrEqual(t, w.made("NewEvent")-before, 4)
	require.LessOrEqual(t, vmm.Retirements(g), 1)
	open()
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestGrowthBesideAnUnmapThatFails: when the growth that waited for the unmap goes on, the
// memory is there again.
func TestGrowthBesideAnUnmapThatFails(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, page)
	require.NoError(t, g.Grow(4*page))
	s := stream(t, w.devs[0])
	require.NoError(t, g.SetLen(page))
	grown := make(chan error, 1)
	w.before = func(c drivertest.Call) error {
		if c.Name != "Unmap" {
			return nil
		}
		w.before = nil
		go func() { grown <- g.Grow(8 * page) }()
		for range 1000 {
			runtime.Gosched() // the growth finds it being unmapped, and waits
		}
		return errInjected
	}
	require.ErrorIs(t, g.Clip(), errInjected)
	require.NoError(t, <-grown)
	require.GreaterOrEqual(t, g.Cap(), uint64(9*page))
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}
