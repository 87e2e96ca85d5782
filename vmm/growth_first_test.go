package vmm_test

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// What else a range does while a growth of it obtains memory.

// TestOthersWhileARangeObtainsMemory: appends that fit, SetLen and Hold do not wait, also not behind a Clip that
// waits for the growth.
func TestOthersWhileARangeObtainsMemory(t *testing.T) {
	w := newWorld(t, 1)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 16 * page, Chunk: page})
	require.NoError(t, g.Append(pattern(page/2, 1)))
	creates, let := make(chan struct{}), make(chan struct{})
	w.before = once("Create", func() {
		close(creates)
		<-let
	})
	appended := begun(func() error { return g.Append(pattern(page, 3)) })
	<-creates
	clipped := parked(g.Clip)
	returns(t, func() {
		require.NoError(t, g.Append(pattern(page/4, 2)))
		release, err := g.Hold(0, page/4)
		require.NoError(t, err)
		release()
		require.NoError(t, g.SetLen(page/2))
	})
	close(let)
	require.NoError(t, <-appended)
	require.NoError(t, clipped())
	require.EqualValues(t, page/2+page, g.Len())
	got := make([]byte, page)
	_, err := g.ReadAt(got, page/2)
	require.NoError(t, err)
	require.Equal(t, pattern(page, 3), got)
	require.NoError(t, g.Close())
	w.end()
}

// TestAppendBesideAnUnmapThatRuns: an append that fits waits neither for the driver's unmap nor for a second Clip.
func TestAppendBesideAnUnmapThatRuns(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g := newRange(t, d, vmm.RangeOptions{Max: 64 * page, Chunk: page})
	s := stream(t, d)
	require.NoError(t, g.UsedBy(s))
	require.NoError(t, g.Append(pattern(page/2, 1)))
	require.NoError(t, g.Grow(8*page))
	unmaps, let := make(chan struct{}), make(chan struct{})
	w.before = once("Unmap", func() {
		close(unmaps)
		<-let
	})
	require.NoError(t, g.Clip())
	<-unmaps
	second := begun(g.Clip)
	returns(t, func() { require.NoError(t, g.Append(pattern(page/4, 2))) })
	close(let)
	require.NoError(t, <-second)
	require.NoError(t, errors.Join(g.Close(), s.Close()))
	w.end()
}

// TestAppendsBesideClipsThatWait: a Clip waits for the growth of each append. Seldom it has the memory first, and
// then the append grows again.
func TestAppendsBesideClipsThatWait(t *testing.T) {
	const appends = 32
	w := newWorld(t, 1)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page})
	for i := range appends {
		var clipped func() error
		w.before = once("Map", func() { clipped = parked(g.Clip) })
		require.NoError(t, g.Append(pattern(page, byte(i))))
		require.NoError(t, clipped())
	}
	require.Less(t, g.Stats().Growths, uint64(3*appends/2))
	require.EqualValues(t, appends*page, g.Len())
	w.before = nil
	require.NoError(t, g.Close())
	w.end()
}

// TestGrowthOfWhatCanBeMapped: the driver has no memory left to map more than is needed.
func TestGrowthOfWhatCanBeMapped(t *testing.T) {
	w := newWorld(t, 1)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page})
	require.NoError(t, g.Append(pattern(16*page, 1)))
	w.before = func(c drivertest.Call) error {
		if c.Name == "Map" && c.Size > page {
			return vmm.ErrOutOfMemory
		}
		return nil
	}
	have := g.Cap()
	require.NoError(t, g.Append(pattern(int(have-g.Len())+page, 2)))
	require.Equal(t, have+page, g.Cap())
	w.before = nil
	require.NoError(t, g.Close())
	w.end()
}

// TestAppendsBesideClips: eight goroutines append while a ninth clips; each append arrives, whole.
func TestAppendsBesideClips(t *testing.T) {
	const goroutines, each = 8, 40
	w := newWorld(t, 1)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: goroutines * each * page, Chunk: page})
	var appends sync.WaitGroup
	for i := range goroutines {
		appends.Go(func() {
			for range each {
				require.NoError(t, g.Append(bytes.Repeat([]byte{byte(i + 1)}, page/2+16)))
			}
		})
	}
	done := make(chan struct{})
	var clips sync.WaitGroup
	clips.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				require.NoError(t, g.Clip())
			}
		}
	})
	appends.Wait()
	close(done)
	clips.Wait()
	got := make([]byte, g.Len())
	_, err := g.ReadAt(got, 0)
	require.NoError(t, err)
	count := map[byte]int{}
	for rest := got; len(rest) > 0; rest = rest[page/2+16:] {
		require.Equal(t, bytes.Repeat(rest[:1], page/2+16), rest[:page/2+16])
		count[rest[0]]++
	}
	for i := range goroutines {
		require.Equal(t, each, count[byte(i+1)])
	}
	require.NoError(t, g.Close())
	w.end()
}

// TestEightAtTheLimit: eight ranges take turns at a limit that three of them fill. It reports the longest
// append.
func TestEightAtTheLimit(t *testing.T) {
	const goroutines, pages = 8, 4
	rounds := 50
	if !testing.Short() {
		rounds = 1000
	}
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetLimit(3*pages*page + page)
	d.SetReleaseThreshold(0)
	var ranges [goroutines]*vmm.Range
	for i := range ranges {
		ranges[i] = newRange(t, d, vmm.RangeOptions{Max: pages * page, Chunk: page})
	}
	stop := d.OnPressure(func(error) bool {
		before := d.Stats().Committed
		for _, g := range ranges {
			if g.Len() == 0 {
				require.NoError(t, g.Clip())
			}
		}
		return d.Stats().Committed < before
	})
	var longest, failures atomic.Int64
	var all sync.WaitGroup
	for _, g := range ranges {
		all.Go(func() {
			for range rounds {
				began := time.Now()
				err := g.Append(make([]byte, pages*page))
				for took := time.Since(began); ; {
					if was := longest.Load(); int64(took) <= was || longest.CompareAndSwap(was, int64(took)) {
						break
					}
				}
				if errors.Is(err, vmm.ErrOutOfMemory) { // all others were between an append and SetLen
					failures.Add(1)
					continue
				}
				require.NoError(t, err)
				require.NoError(t, g.SetLen(0))
			}
		})
	}
	all.Wait()
	stop()
	t.Logf("the longest of %d appends: %v; %d found no memory", goroutines*rounds, time.Duration(longest.Load()), failures.Load())
	for _, g := range ranges {
		require.NoError(t, g.Close())
	}
	w.end()
}
