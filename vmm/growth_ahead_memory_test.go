package vmm_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// ofMemory is a bubble whose device has that many pages.
func ofMemory(t *testing.T, pages uint64, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := worldOn(t, 1, host.Config{Memory: pages * page, Granularity: page})
		raw(t, w.devs[0]) // growth ahead reads the free memory if a context is open
		f(t, w)
		w.end()
	})
}

// TestGrowthAheadLeavesSome of the device's memory to growth that cannot wait. It reads
// how much is free instead of trying.
func TestGrowthAheadLeavesSome(t *testing.T) {
	ofMemory(t, 64, func(t *testing.T, w *world) {
		d := w.devs[0]
		w.before = func(c drivertest.Call) error {
			if c.Name == "Create" && d.Stats().Committed+c.Size > 60*page {
				t.Errorf("creates beyond what it may have")
			}
			return nil
		}
		a := newRange(t, d, vmm.RangeOptions{Max: 1024 * page, Chunk: page, GrowAhead: 512 * page})
		synctest.Wait()
		looked()
		require.EqualValues(t, 60*page, d.Stats().Committed, "a sixteenth is left")
		w.before = nil
		b := newRange(t, d, vmm.RangeOptions{Max: 64 * page, Chunk: page})
		require.NoError(t, b.Append(pattern(4*page, 1)))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

// TestGrowthAheadRests after a growth has run out of memory: memory that is released then
// is left to such growths.
func TestGrowthAheadRests(t *testing.T) {
	ofMemory(t, 64, func(t *testing.T, w *world) {
		d := w.devs[0]
		b := newRange(t, d, vmm.RangeOptions{Max: 128 * page, Chunk: page})
		require.NoError(t, b.Append(pattern(60*page, 1)))
		require.ErrorIs(t, b.Grow(5*page), vmm.ErrOutOfMemory)
		a := newRange(t, d, vmm.RangeOptions{Max: 64 * page, Chunk: page, GrowAhead: 16 * page})
		require.NoError(t, b.SetLen(40*page))
		require.NoError(t, b.Clip())
		looked()
		require.Zero(t, a.Cap(), "it rests")
		require.NoError(t, b.Grow(24*page))
		require.NoError(t, b.SetLen(0))
		require.NoError(t, b.Clip())
		pass(200 * time.Millisecond)
		require.NoError(t, a.Append([]byte{1}))
		looked()
		require.Greater(t, a.Cap(), uint64(8*page), "it works again")
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

// TestGrowthAheadKeepsWhatItGot if memory runs out in its middle.
func TestGrowthAheadKeepsWhatItGot(t *testing.T) {
	ofMemory(t, 64, func(t *testing.T, w *world) {
		creates := 0
		w.before = func(c drivertest.Call) error {
			if c.Name == "Create" {
				if creates++; creates > 3 {
					return vmm.ErrOutOfMemory
				}
			}
			return nil
		}
		a := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, GrowAhead: 8 * page})
		synctest.Wait()
		looked()
		require.EqualValues(t, 3*page, a.Cap())
		require.EqualValues(t, 1, a.Stats().GrowAheadFailures)
		require.Equal(t, 4, creates)
		w.before = nil
		require.NoError(t, a.Close())
	})
}

// TestGrowthAheadOfALargeRangeLeavesSome, too, although growth that a caller waits for
// grows by a quarter of the range.
func TestGrowthAheadOfALargeRangeLeavesSome(t *testing.T) {
	ofMemory(t, 64, func(t *testing.T, w *world) {
		d := w.devs[0]
		a := newRange(t, d, vmm.RangeOptions{Max: 1024 * page, GrowAhead: 8 * page})
		require.NoError(t, a.Append(pattern(52*page, 1)))
		synctest.Wait()
		looked()
		require.LessOrEqual(t, d.Stats().Committed, uint64(60*page), "a sixteenth is left")
		require.NoError(t, a.Append(pattern(2*page, 1)))
		pass(200 * time.Millisecond)
		require.NoError(t, a.Append([]byte{1}))
		looked()
		require.LessOrEqual(t, d.Stats().Committed, uint64(60*page), "a sixteenth is left")
		require.NoError(t, a.Close())
	})
}

// TestGrowAheadIsGivenBack: a GrowAhead that a caller makes takes what is free, and gives back what
// it has mapped itself once the stream is done, but not what others count on.
func TestGrowAheadIsGivenBack(t *testing.T) {
	ofMemory(t, 64, func(t *testing.T, w *world) {
		d := w.devs[0]
		asked := 0
		stop := d.OnPressure(func(error) bool { asked++; return false })
		s, err := d.NewStream()
		require.NoError(t, err)
		g := newRange(t, d, vmm.RangeOptions{Max: 1024 * page, Chunk: page})
		require.NoError(t, g.Append(pattern(4*page, 1)))
		require.NoError(t, g.Grow(2*page))
		giveBack := inside.VMM.GrowAhead(g, 100*page)
		require.EqualValues(t, 60*page, g.Cap(), "a sixteenth is left")
		require.EqualValues(t, 1, g.Stats().GrowAheadFailures)
		giveBack(0, nil)
		require.EqualValues(t, 60*page, g.Cap(), "without a stream all stays")

		open := gate(t, d, s.Raw())
		require.NoError(t, g.SetLen(8*page))
		giveBack(2*page, s)
		require.EqualValues(t, 10*page, g.Cap())
		require.EqualValues(t, 50*page, g.Stats().Retiring, "the stream may use it")
		looked()
		pass(100 * time.Millisecond)
		require.EqualValues(t, 50*page, g.Stats().Retiring)
		open()
		pass(100 * time.Millisecond)
		require.Zero(t, g.Stats().Retiring)
		require.EqualValues(t, 10*page, d.Stats().Committed)
		giveBack(0, s)
		require.EqualValues(t, 10*page, g.Cap(), "it has ended elsewhere since")

		giveBack = inside.VMM.GrowAhead(g, 4*page)
		require.EqualValues(t, 12*page, g.Cap())
		release, err := g.Hold(11*page, page)
		require.NoError(t, err)
		giveBack(0, s)
		require.EqualValues(t, 12*page, g.Cap(), "held")
		release()
		giveBack(0, s)
		require.EqualValues(t, 10*page, g.Cap(), "what was there before stays")

		// Earlier work may use what is retiring, and a growth takes it back for nothing.
		require.NoError(t, g.UsedBy(s))
		open = gate(t, d, s.Raw())
		require.NoError(t, g.Clip())
		giveBack = inside.VMM.GrowAhead(g, 4*page)
		giveBack(0, s)
		require.EqualValues(t, 8*page, g.Cap())
		open()

		require.Zero(t, asked)
		require.NoError(t, g.Close())
		inside.VMM.GrowAhead(g, page)(0, s)
		inside.VMM.GrowAhead(nil, page)(0, s)
		stop()
		require.NoError(t, s.Close())
	})
}
