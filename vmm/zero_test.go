package vmm_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

const secret = 0x5a

// fillCap writes the secret to all that the range has memory for, as a kernel would.
func fillCap(t *testing.T, g *vmm.Range) {
	t.Helper()
	s := stream(t, g.Device())
	require.NoError(t, s.Fill(g.Ptr(), secret, 1, g.Cap()))
	require.NoError(t, s.Sync())
	require.NoError(t, s.Close())
}

// shown raises Len to Cap and returns the bytes from off on.
func shown(t *testing.T, g *vmm.Range, off uint64) []byte {
	t.Helper()
	require.NoError(t, g.SetLen(g.Cap()))
	b := make([]byte, g.Len()-off)
	_, err := g.ReadAt(b, int64(off))
	require.NoError(t, err)
	return b
}

// usedPages leaves n pages that hold the secret in the device's cache.
func usedPages(t *testing.T, w *world, n uint64) {
	t.Helper()
	w.devs[0].SetReleaseThreshold(1 << 30)
	old := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page})
	require.NoError(t, old.Grow(n*page))
	fillCap(t, old)
	require.NoError(t, old.Close())
	require.Equal(t, n*page, w.devs[0].Stats().Cached)
}

// TestZero: by none of the ways in which memory enters Cap does a range with Zero show
// bytes of another range, or its own dropped ones. Without it the same steps show them.
func TestZero(t *testing.T) {
	ways := map[string]func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte){
		"Grow from the cache": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			usedPages(t, w, 4)
			g := newRange(t, w.devs[0], o)
			require.NoError(t, g.Grow(4*page))
			return g, shown(t, g, 0)
		},
		"half from the cache": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			usedPages(t, w, 2)
			g := newRange(t, w.devs[0], o)
			require.NoError(t, g.Grow(4*page))
			return g, shown(t, g, 0)
		},
		"Append": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			usedPages(t, w, 4)
			g := newRange(t, w.devs[0], o)
			require.NoError(t, g.Append(make([]byte, 3*page+1)))
			return g, shown(t, g, 0)
		},
		"ahead of need": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			usedPages(t, w, 4)
			o.GrowAhead = 4 * page
			g := newRange(t, w.devs[0], o)
			require.Eventually(t, func() bool { return g.Cap() == 4*page }, 10*time.Second, time.Millisecond)
			return g, shown(t, g, 0)
		},
		"Clip and Grow": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			w.devs[0].SetReleaseThreshold(1 << 30)
			g := newRange(t, w.devs[0], o)
			require.NoError(t, g.Grow(4*page))
			fillCap(t, g)
			require.NoError(t, g.Clip())
			require.NoError(t, g.Grow(4*page))
			return g, shown(t, g, 0)
		},
		"Clip and Grow before it is unmapped": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			g := newRange(t, w.devs[0], o)
			s := stream(t, w.devs[0])
			require.NoError(t, g.UsedBy(s))
			require.NoError(t, g.Grow(4*page))
			// The secret is written when the range has grown again.
			open := gate(t, w.devs[0], s.Raw())
			require.NoError(t, s.Fill(g.Ptr(), secret, 1, 4*page))
			clip := parked(g.Clip)
			if !o.Zero {
				require.NoError(t, clip())
			}
			grow := parked(func() error { return g.Grow(4 * page) })
			if !o.Zero {
				require.NoError(t, grow())
			}
			open()
			if o.Zero {
				require.NoError(t, clip(), "it waits for the work of before")
				require.NoError(t, grow(), "and this for the Clip")
			}
			require.NoError(t, s.Sync())
			b := shown(t, g, 0)
			require.NoError(t, s.Close())
			return g, b
		},
		"Sleep and Wake": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			g := newRange(t, w.devs[0], o)
			require.NoError(t, g.Append(pattern(page/2, 1)))
			require.NoError(t, g.Grow(3*page))
			require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
			usedPages(t, w, 4)
			require.NoError(t, vmm.Wake(g))
			got := make([]byte, page/2)
			_, err := g.ReadAt(got, 0)
			require.NoError(t, err)
			require.Equal(t, pattern(page/2, 1), got)
			return g, shown(t, g, page/2)
		},
		"Sleep that drops, and Wake": func(t *testing.T, w *world, o vmm.RangeOptions) (*vmm.Range, []byte) {
			g := newRange(t, w.devs[0], o)
			require.NoError(t, g.Append(make([]byte, 4*page)))
			require.NoError(t, vmm.Sleep(vmm.SleepDrop, g))
			usedPages(t, w, 4)
			require.NoError(t, vmm.Wake(g))
			return g, shown(t, g, 0)
		},
	}
	for name, way := range ways {
		for _, zero := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%v", name, zero), func(t *testing.T) {
				w := newWorld(t, 1)
				g, b := way(t, w, vmm.RangeOptions{Max: 64 * page, Chunk: page, Zero: zero})
				require.Equal(t, zero, bytes.Count(b, []byte{0}) == len(b))
				require.NoError(t, g.Close())
				w.end()
			})
		}
	}
}

// TestZeroLeavesWhatIsWritten: what a kernel writes beyond Len is shown by SetLen, and
// memory beyond it that a later growth adds is zero.
func TestZeroLeavesWhatIsWritten(t *testing.T) {
	w := newWorld(t, 1)
	usedPages(t, w, 4)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, Zero: true})
	require.NoError(t, g.Grow(page))
	fillCap(t, g)
	require.NoError(t, g.Grow(3*page))
	b := shown(t, g, 0)
	require.Equal(t, bytes.Repeat([]byte{secret}, page), b[:page])
	require.Equal(t, make([]byte, len(b)-page), b[page:])
	require.NoError(t, g.Close())
	w.end()
}

// TestZeroWithAReadOnlyOwner: it wakes, and does not grow.
func TestZeroWithAReadOnlyOwner(t *testing.T) {
	w := newWorld(t, 1)
	usedPages(t, w, 6)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, Zero: true})
	require.NoError(t, g.Grow(2*page))
	require.NoError(t, g.Grant(vmm.AccessRead, w.devs[0]))
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	require.NoError(t, vmm.Wake(g))
	require.Equal(t, vmm.AccessRead, g.Access(w.devs[0]))
	require.Equal(t, make([]byte, 2*page), shown(t, g, 0))
	require.ErrorIs(t, g.Grow(page), vmm.ErrInvalid)
	require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[0]))
	require.NoError(t, g.Grow(page))
	require.NoError(t, g.Close())
	w.end()
}

// TestMaxIsExact although addresses and memory come in chunks.
func TestMaxIsExact(t *testing.T) {
	w := newWorld(t, 1)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: page + 100})
	require.EqualValues(t, page+100, g.Max())
	require.EqualValues(t, page+100, g.Options().Max)
	require.EqualValues(t, 2*page, g.Stats().Reserved)
	require.NoError(t, g.Append(make([]byte, page)))
	require.ErrorIs(t, g.Append(make([]byte, 101)), vmm.ErrFull)
	require.ErrorIs(t, g.Grow(101), vmm.ErrFull)
	require.NoError(t, g.Append(make([]byte, 100)))
	require.EqualValues(t, page+100, g.Cap())
	require.EqualValues(t, 2*page, g.Stats().Committed)
	require.ErrorIs(t, g.SetLen(page+101), vmm.ErrBounds)
	require.ErrorIs(t, g.Append([]byte{1}), vmm.ErrFull)
	require.NoError(t, g.Close())
	w.end()
}

// TestAFillThatRunsIsNotUnmapped: if it cannot be waited for, its memory stays, and is
// filled again.
func TestAFillThatRunsIsNotUnmapped(t *testing.T) {
	for _, refused := range []int{1, 2} {
		w := newWorld(t, 1)
		usedPages(t, w, 4)
		g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, Zero: true})
		w.register(g)
		open := gate(t, w.devs[0], raw(t, w.devs[0]).CopyStream())
		w.refuse("SyncStream", refused, driver.ErrInvalid)
		grown := make(chan error, 1)
		go func() { grown <- g.Grow(2 * page) }()
		require.Eventually(t, func() bool { return w.left("SyncStream") == 0 }, 10*time.Second, time.Millisecond)
		open()
		if refused == 1 { // the second wait was for the fill
			require.ErrorIs(t, <-grown, driver.ErrInvalid)
			require.Zero(t, g.Stats().Committed)
		} else {
			require.NoError(t, <-grown)
			require.Zero(t, g.Stats().Quarantined, "it has been filled after all")
			require.Equal(t, make([]byte, 2*page), shown(t, g, 0))
			require.NoError(t, g.Grow(page))
		}
		require.NoError(t, g.Close())
		require.NoError(t, w.devs[0].Sync(), "the device is well")
		w.end()
	}
}

// TestClipAfterAFillThatRuns: Clip takes the chunks above Cap, too.
func TestClipAfterAFillThatRuns(t *testing.T) {
	w := newWorld(t, 1)
	usedPages(t, w, 4)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, Zero: true})
	w.register(g)
	require.NoError(t, g.Grow(page))
	w.refuse("SyncStream", 4, driver.ErrInvalid) // of the growth, and of its next try
	require.ErrorIs(t, g.Grow(3*page), driver.ErrInvalid)
	require.Zero(t, w.left("SyncStream"))
	require.EqualValues(t, page, g.Cap())
	require.EqualValues(t, 3*page, g.Stats().Committed)
	require.NoError(t, g.Clip())
	require.Zero(t, g.Stats().Committed)
	require.NoError(t, g.Grow(4*page))
	require.Equal(t, make([]byte, 4*page), shown(t, g, 0))
	require.NoError(t, g.Close())
	w.end()
}

// TestSetLenShowsTheOldBytes, as a slice does, with Zero too.
func TestSetLenShowsTheOldBytes(t *testing.T) {
	for _, zero := range []bool{true, false} {
		w := newWorld(t, 1)
		g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, Zero: zero})
		b := bytes.Repeat([]byte{secret}, 3*page)
		require.NoError(t, g.Append(b))
		require.NoError(t, g.SetLen(page+7))
		require.NoError(t, g.SetLen(3*page))
		require.Equal(t, b, shown(t, g, 0))
		require.NoError(t, g.Close())
		w.end()
	}
}

// retiringAhead is a range with Zero and two pages, and two more that were mapped ahead and retire
// behind a stream.
func retiringAhead(t *testing.T, w *world) (g *vmm.Range, s *vmm.Stream, open func()) {
	t.Helper()
	d := w.devs[0]
	g = newRange(t, d, vmm.RangeOptions{Max: 64 * page, Chunk: page, Zero: true, GrowAhead: page})
	s = stream(t, d)
	require.NoError(t, g.Grow(2*page))
	require.NoError(t, g.UsedBy(s))
	giveBack := inside.VMM.GrowAhead(g, 4*page)
	require.EqualValues(t, 4*page, g.Cap())
	open = work(t, d, s.Raw(), g.Ptr()+3*page)
	giveBack(2*page, s)
	require.EqualValues(t, 2*page, g.Stats().Retiring)
	return g, s, open
}

// TestZeroedGrowthWaitsForWhatRetires: it maps memory anew, and fails during a capture.
func TestZeroedGrowthWaitsForWhatRetires(t *testing.T) {
	w := newWorld(t, 1)
	vmm.SetNoWorker(w.devs[0], true) // the growth unmaps
	g, s, open := retiringAhead(t, w)
	end := captured(t, w, s)
	require.ErrorIs(t, g.Grow(4*page), vmm.ErrCapturing)
	require.EqualValues(t, 2*page, g.Stats().Retiring)
	end()
	w.refuse("Unmap", 1, errInjected)
	grow := parked(func() error { return g.Grow(4 * page) })
	open()
	require.ErrorIs(t, grow(), errInjected)
	require.NoError(t, g.Grow(4*page))
	vmm.SetNoWorker(w.devs[0], false)
	require.NoError(t, s.Sync())
	require.Equal(t, make([]byte, 4*page), shown(t, g, 0))
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestZeroedGrowthAheadDoesNotWait: memory that waits for work keeps the device's goroutine
// from no other range.
func TestZeroedGrowthAheadDoesNotWait(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, s, open := retiringAhead(t, w)
	require.NoError(t, g.SetLen(2*page)) // asks for growth ahead

	other := newRange(t, d, vmm.RangeOptions{Max: 64 * page, Chunk: page, GrowAhead: 4 * page})
	require.NoError(t, other.Append([]byte{1}))
	require.Eventually(t, func() bool { return other.Cap() >= 4*page }, 10*time.Second, time.Millisecond)
	require.NotZero(t, g.Stats().Retiring, "its work runs all the time")
	open()
	require.NoError(t, s.Sync())
	for _, x := range []interface{ Close() error }{s, other, g} {
		require.NoError(t, x.Close())
	}
	w.end()
}

// TestAFillThatRunsDuringAWake: the range sleeps on, and the next Wake unmaps first.
func TestAFillThatRunsDuringAWake(t *testing.T) {
	w := newWorld(t, 1)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, Zero: true})
	w.register(g)
	b := bytes.Repeat([]byte{secret}, page)
	require.NoError(t, g.Append(b))
	require.NoError(t, g.Grow(3*page))
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	usedPages(t, w, 4) // which the wake takes, and has to fill
	w.refuse("SyncStream", 2, driver.ErrInvalid)
	require.ErrorIs(t, vmm.Wake(g), driver.ErrInvalid)
	w.registered("the chunks that are being filled")
	require.Zero(t, g.Cap())
	require.NoError(t, vmm.Wake(g))
	require.Zero(t, g.Stats().Quarantined)
	require.Equal(t, append(b, make([]byte, 3*page)...), shown(t, g, 0))
	require.NoError(t, g.Close())
	w.end()
}

// TestZeroValuesOfSeveral ranges at a time.
func TestZeroValuesOfSeveral(t *testing.T) {
	w := newWorld(t, 1)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: page})
	for _, all := range [][]*vmm.Range{{{}}, {g, {}}, {nil}} {
		require.ErrorIs(t, vmm.Sleep(vmm.SleepDrop, all...), vmm.ErrInvalid)
		require.ErrorIs(t, vmm.Wake(all...), vmm.ErrInvalid)
		require.ErrorIs(t, vmm.EnablePeers(vmm.AccessRead, w.devs, memory(all...)...), vmm.ErrInvalid)
		_, err := vmm.PlanPeers(vmm.AccessRead, w.devs, memory(all...)...)
		require.ErrorIs(t, err, vmm.ErrInvalid)
	}
	require.ErrorIs(t, vmm.EnablePeers(vmm.AccessRead, []*vmm.Device{{}}, g), vmm.ErrInvalid)
	require.NoError(t, g.Close())
	w.end()
}

// TestClipThatFailsShowsNothingUnfilled: chunks above Cap whose fill failed stay above it.
func TestClipThatFailsShowsNothingUnfilled(t *testing.T) {
	w := newWorld(t, 1)
	usedPages(t, w, 4)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, Zero: true})
	w.refuse("SyncStream", 4, errInjected) // of the growth, and of its next try
	require.ErrorIs(t, g.Grow(2*page), errInjected)
	require.Zero(t, g.Cap())
	require.EqualValues(t, 2*page, g.Stats().Committed)
	w.refuse("Unmap", 1, errInjected)
	require.ErrorIs(t, g.Clip(), errInjected)
	require.Zero(t, g.Cap())
	require.NoError(t, g.Grow(2*page))
	require.Equal(t, make([]byte, 2*page), shown(t, g, 0))
	require.NoError(t, g.Close())
	w.end()
}
