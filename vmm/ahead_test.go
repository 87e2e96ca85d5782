package vmm_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// ofMemory is a bubble whose device has that many pages.
func ofMemory(t *testing.T, pages uint64, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := worldOn(t, 1, host.Config{Memory: pages * page, PageGranularity: page == 4096})
		raw(t, w.devs[0]) // look-ahead asks what is free where a context is open
		f(t, w)
		w.end()
	})
}

// TestLookAheadLeavesSome of the device's memory to those who cannot wait, and
// asks instead of trying.
func TestLookAheadLeavesSome(t *testing.T) {
	ofMemory(t, 64, func(t *testing.T, w *world) {
		d := w.devs[0]
		w.before = func(c drivertest.Call) error {
			if c.Name == "Create" && d.Stats().Committed+c.Size > 60*page {
				t.Errorf("creates beyond what it may have")
			}
			return nil
		}
		a := newRange(t, d, vmm.RangeOptions{Max: 1024 * page, Chunk: page, Ahead: 512 * page})
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

// TestLookAheadGivesWay to growth that somebody waits for, as far as nobody knows
// of the memory.
func TestLookAheadGivesWay(t *testing.T) {
	ofMemory(t, 64, func(t *testing.T, w *world) {
		d := w.devs[0]
		a := newRange(t, d, vmm.RangeOptions{Max: 1024 * page, Chunk: page, Ahead: 512 * page})
		synctest.Wait()
		looked()
		require.NoError(t, a.Grow(8*page))
		b := newRange(t, d, vmm.RangeOptions{Max: 64 * page, Chunk: page})
		require.NoError(t, b.Append(pattern(56*page, 1)))
		require.EqualValues(t, 8*page, a.Cap(), "what was asked for stays")
		require.ErrorIs(t, b.Append([]byte{1}), vmm.ErrOutOfMemory)
		require.NoError(t, a.Append(pattern(8*page, 2)))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

// TestLookAheadKeepsWhatIsKnown: memory up to a Cap that somebody has read stays.
func TestLookAheadKeepsWhatIsKnown(t *testing.T) {
	for name, look := range map[string]func(a *vmm.Range){
		"Cap":      func(a *vmm.Range) { a.Cap() },
		"Segments": func(a *vmm.Range) { a.Segments() },
	} {
		t.Run(name, func(t *testing.T) {
			ofMemory(t, 64, func(t *testing.T, w *world) {
				a := newRange(t, w.devs[0], vmm.RangeOptions{Max: 1024 * page, Chunk: page, Ahead: 32 * page})
				synctest.Wait()
				looked()
				look(a)
				b := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page})
				require.ErrorIs(t, b.Append(pattern(33*page, 1)), vmm.ErrOutOfMemory)
				require.EqualValues(t, 32*page, a.Cap())
				require.NoError(t, a.Close())
				require.NoError(t, b.Close())
			})
		})
	}
}

// TestLookAheadKeepsWhatItGot where memory runs out in its middle.
func TestLookAheadKeepsWhatItGot(t *testing.T) {
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
		a := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, Ahead: 8 * page})
		synctest.Wait()
		looked()
		require.EqualValues(t, 3*page, a.Cap())
		require.EqualValues(t, 1, a.Stats().AheadFailures)
		require.Equal(t, 4, creates)
		w.before = nil
		require.NoError(t, a.Close())
	})
}
