package vmm_test

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/vmm"
)

// twoRanges is two ranges of a device whose calls cost nothing.
func twoRanges(t *testing.T) (d *vmm.Device, a, b *vmm.Range) {
	t.Helper()
	d, err := vmm.OpenDriver(nulldriver.New(), 0)
	require.NoError(t, err)
	a, b = newRange(t, d, vmm.RangeOptions{Max: 1 << 30}), newRange(t, d, vmm.RangeOptions{Max: 1 << 30})
	require.NoError(t, a.Grow(1<<30))
	require.NoError(t, b.Grow(1<<30))
	t.Cleanup(func() {
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		require.Zero(t, d.Stats().Used)
		require.NoError(t, d.Close())
	})
	return d, a, b
}

// TestAppendTakesNoCounters: an append in place waits for no one who counts what another range does
// or reads what the device has, but for the first one after such a reading.
func TestAppendTakesNoCounters(t *testing.T) {
	d, a, b := twoRanges(t)
	require.NoError(t, a.Append([]byte{1}))
	require.NoError(t, b.Append([]byte{1}))
	release := vmm.HoldCounters(d)
	var appended atomic.Bool
	end := parked(func() error {
		defer appended.Store(true)
		return a.Append([]byte{2})
	})
	waited := !appended.Load()
	release()
	require.False(t, waited)
	require.NoError(t, end())
	require.EqualValues(t, 3, d.Stats().Used)
}

// TestPeakUsed: the peaks are the most that there was at one moment, however it came about and
// whoever read it when.
func TestPeakUsed(t *testing.T) {
	d, a, b := twoRanges(t)
	peaks := func(device, first, second uint64) {
		t.Helper()
		require.Equal(t, device, d.Stats().PeakUsed)
		require.Equal(t, first, a.Stats().PeakUsed)
		require.Equal(t, second, b.Stats().PeakUsed)
	}
	require.NoError(t, a.Append(make([]byte, 10)))
	require.NoError(t, b.Append(make([]byte, 7)))
	require.NoError(t, a.SetLen(4))
	require.NoError(t, b.Append(make([]byte, 5)))
	peaks(17, 10, 12)
	require.EqualValues(t, 16, d.Stats().Used)
	require.NoError(t, b.SetLen(20))
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, a))
	require.EqualValues(t, 20, d.Stats().Used)
	require.EqualValues(t, 4, d.Stats().Asleep)
	require.NoError(t, b.Append(make([]byte, 3)))
	require.NoError(t, vmm.Wake(a))
	require.NoError(t, b.SetLen(0))
	peaks(27, 10, 23)
	d.ResetPeaks()
	a.ResetPeaks()
	b.ResetPeaks()
	peaks(4, 4, 0)
	require.NoError(t, b.Append(make([]byte, 2)))
	require.NoError(t, b.SetLen(1))
	peaks(6, 4, 2)
}

// TestUsedOfOneMoment: of bytes that are appended to one range after another, in turn, no reading
// has the later ones without the earlier ones, also if it looks at many ranges in between.
func TestUsedOfOneMoment(t *testing.T) {
	d, a, b := twoRanges(t)
	var between [300]*vmm.Range
	for i := range between {
		between[i] = newRange(t, d, vmm.RangeOptions{Max: 1 << 20})
	}
	var asked, read atomic.Int32
	done := make(chan error, 1)
	const rounds = 50
	go func() {
		var all []error
		for i := int32(1); i <= rounds; i++ {
			all = append(all, a.Append(make([]byte, 1)))
			for _, g := range between {
				all = append(all, g.Append(make([]byte, 3)))
			}
			all = append(all, b.Append(make([]byte, 2)))
			asked.Store(i)
			for read.Load() < i {
				all = append(all, a.Append(make([]byte, 1)), b.Append(make([]byte, 2)))
			}
		}
		done <- errors.Join(all...)
	}()
	for i := int32(1); i <= rounds; i++ {
		for asked.Load() < i {
			runtime.Gosched()
		}
		require.NotEqual(t, uint64(2), d.Stats().Used%3, "the two bytes without the one before")
		read.Store(i)
	}
	require.NoError(t, <-done)
	for _, g := range between {
		require.NoError(t, g.Close())
	}
	require.Equal(t, a.Len()+b.Len(), d.Stats().Used)
}
