package vmm_test

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// small returns n host devices of so many pages each.
func small(t testing.TB, n int, pages uint64) *world {
	t.Helper()
	return worldOn(t, n, host.Config{Devices: n, Memory: pages * page, Granularity: page})
}

// made says how many calls of a name succeeded.
func (w *world) made(name string) int { return w.drv.Counts()[name].Made }

func newRange(t testing.TB, d *vmm.Device, o vmm.RangeOptions) *vmm.Range {
	t.Helper()
	g, err := d.NewRange(o)
	require.NoError(t, err)
	return g
}

// keepChunks leaves chunks of so many pages each in the cache, in this order.
func keepChunks(t testing.TB, w *world, pages ...uint64) {
	t.Helper()
	var all []*vmm.Chunk
	for _, n := range pages {
		all = append(all, chunk(t, w, n*page))
	}
	for _, c := range all {
		require.NoError(t, c.Close())
	}
}

// TestRegrowthOfKeptMemory: a range that shrinks and grows again neither releases nor
// creates memory.
func TestRegrowthOfKeptMemory(t *testing.T) {
	for name, o := range map[string]vmm.RangeOptions{"ladder": {Max: 256 * page}, "fixed": {Max: 256 * page, Chunk: 2 * page}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			d := w.devs[0]
			require.Zero(t, d.SetReleaseThreshold(256*page))
			g := newRange(t, d, o)
			for n := 1; n <= 64; n *= 2 {
				require.NoError(t, g.Append(pattern(n*page, byte(n))))
			}
			top := g.Cap()
			chunks := g.Stats().Chunks
			creates := w.made("Create")
			for range 3 {
				require.NoError(t, g.SetLen(0))
				require.NoError(t, g.Clip())
				require.EqualValues(t, top, d.Stats().Cached)
				require.EqualValues(t, top, d.Stats().Committed, "kept, and counted")
				require.NoError(t, g.Append(pattern(int(top), 5)))
			}
			require.Equal(t, creates, w.made("Create"))
			require.Zero(t, w.made("Release"))
			require.EqualValues(t, g.Stats().Hits, d.Stats().Hits)
			require.GreaterOrEqual(t, d.Stats().Hits, uint64(chunks))
			require.Equal(t, top, g.Cap())
			b := make([]byte, top)
			_, err := g.ReadAt(b, 0)
			require.NoError(t, err)
			require.Equal(t, pattern(int(top), 5), b)
			require.NoError(t, g.Close())
			require.EqualValues(t, top, d.Stats().Cached)
			w.end()
		})
	}
}

// TestGrowthTakesWhatFits: kept chunks of the range's own size, or of its default sizes.
// None is larger than the growth, and none is too small to be worth a mapping.
func TestGrowthTakesWhatFits(t *testing.T) {
	for _, c := range []struct {
		name string
		o    vmm.RangeOptions
		kept []uint64
		grow uint64
		hits uint64
		left uint64 // pages
	}{
		{"the largest that fits", vmm.RangeOptions{}, []uint64{1, 2, 4, 16}, 8, 3, 16},
		{"exactly", vmm.RangeOptions{}, []uint64{8}, 8, 1, 0},
		{"none is large enough to be worth it", vmm.RangeOptions{}, []uint64{1, 1, 1, 1}, 64, 0, 4},
		{"an eighth is", vmm.RangeOptions{}, []uint64{8, 1}, 64, 1, 1},
		{"fixed, and larger ones are kept", vmm.RangeOptions{Chunk: 2 * page}, []uint64{4, 3, 2, 1}, 6, 1, 8},
		{"fixed, and only an odd one is kept", vmm.RangeOptions{Chunk: 2 * page}, []uint64{3}, 6, 0, 3},
		{"fixed, smaller ones are kept", vmm.RangeOptions{Chunk: 4 * page}, []uint64{2, 2}, 4, 0, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1)
			d := w.devs[0]
			d.SetReleaseThreshold(256 * page)
			keepChunks(t, w, c.kept...)
			c.o.Max = 128 * page
			g := newRange(t, d, c.o)
			require.NoError(t, g.Grow(c.grow*page))
			require.EqualValues(t, c.grow*page, g.Cap())
			require.Equal(t, c.hits, d.Stats().Hits)
			require.Equal(t, c.left*page, d.Stats().Cached)
			var sum uint64
			for _, s := range g.Segments() {
				sum += s.Size
				if c.o.Chunk != 0 {
					require.Equal(t, c.o.Chunk, s.Size)
				}
			}
			require.Equal(t, g.Cap(), sum)
			require.NoError(t, g.Close())
			w.end()
		})
	}
}

// TestGrowthTakesNoneAboveTheLargest: neither a kept chunk of more than 2 GiB, nor a new one.
func TestGrowthTakesNoneAboveTheLargest(t *testing.T) {
	const gib = 1 << 30
	d, err := vmm.OpenDriver(nulldriver.New(), 0)
	require.NoError(t, err)
	d.SetReleaseThreshold(16 * gib)
	for _, size := range []uint64{4 * gib, 2 * gib} {
		c, err := d.Create(size, vmm.Prop{})
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	g := newRange(t, d, vmm.RangeOptions{Max: 16 * gib})
	require.NoError(t, g.Grow(8*gib))
	require.EqualValues(t, 1, d.Stats().Hits)
	require.EqualValues(t, 4*gib, d.Stats().Cached)
	segments := g.Segments()
	require.Len(t, segments, 4)
	for _, s := range segments {
		require.EqualValues(t, 2*gib, s.Size)
	}
	require.NoError(t, g.Close())
	require.NoError(t, d.Close())
}

func TestTheOldestAreReleasedFirst(t *testing.T) {
	for _, c := range []struct {
		kept  []uint64
		keep  uint64
		freed uint64
	}{
		{[]uint64{1, 2, 4}, 7, 0},
		{[]uint64{1, 2, 4}, 6, 1},
		{[]uint64{1, 2, 4}, 5, 3},
		{[]uint64{4, 1, 2}, 6, 4},
		{[]uint64{4, 1, 2}, 2, 5},
		{[]uint64{2, 4, 1}, 6, 2},
		{[]uint64{2, 4, 1}, 0, 7},
	} {
		w := newWorld(t, 1)
		d := w.devs[0]
		d.SetReleaseThreshold(100 * page)
		keepChunks(t, w, c.kept...)
		freed, err := d.Trim(c.keep * page)
		require.NoError(t, err)
		require.Equal(t, c.freed*page, freed, "%v", c)
		require.Equal(t, (7-c.freed)*page, d.Stats().Cached)
		require.Equal(t, (7-c.freed)*page, d.Stats().Committed)
		w.end()
	}
}

func TestThreshold(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	keepChunks(t, w, 1)
	require.Zero(t, d.Stats().Cached, "nothing is kept by default")
	require.Equal(t, 1, w.made("Release"))

	require.EqualValues(t, 0, d.SetReleaseThreshold(4*page))
	require.EqualValues(t, 4*page, d.Stats().ReleaseThreshold)
	keepChunks(t, w, 5)
	require.Zero(t, d.Stats().Cached, "larger than all that is to be kept")
	keepChunks(t, w, 2, 2)
	require.EqualValues(t, 4*page, d.Stats().Cached)
	keepChunks(t, w, 1)
	require.EqualValues(t, 3*page, d.Stats().Cached, "the oldest were released for it")

	require.EqualValues(t, 4*page, d.SetReleaseThreshold(2*page))
	require.EqualValues(t, page, d.Stats().Cached, "a lower threshold holds at once")
	require.EqualValues(t, 2*page, d.SetReleaseThreshold(8*page))
	keepChunks(t, w, 4)
	require.EqualValues(t, 5*page, d.Stats().Cached)
	require.EqualValues(t, 8*page, d.SetReleaseThreshold(0))
	require.Zero(t, d.Stats().Cached)
	require.Zero(t, d.Stats().Committed)
	keepChunks(t, w, 1)
	require.Zero(t, d.Stats().Cached)
	require.EqualValues(t, 5*page, d.Stats().PeakCached)
	d.ResetPeaks()
	d.SetReleaseThreshold(4 * page)
	keepChunks(t, w, 2, 2, 3, 4)
	require.EqualValues(t, 4*page, d.Stats().PeakCached, "never more, not for a moment")
	w.end()

	_, err := d.Trim(0)
	require.ErrorIs(t, err, vmm.ErrClosed)
}

// TestKeptMemoryIsReleasedWithTheDevice, by Close. If the driver refuses, the memory
// stays counted and Close can be called again.
func TestKeptMemoryIsReleasedWithTheDevice(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(8 * page)
	keepChunks(t, w, 1, 2)
	w.arm(1)
	require.ErrorIs(t, d.Close(), errInjected)
	w.disarm()
	st := d.Stats()
	require.Zero(t, st.Cached)
	require.Equal(t, st.Quarantined, st.Committed)
	require.NotZero(t, st.Quarantined)
	require.NoError(t, d.Close())
	w.end()
}

// TestTrimCountsWhatItReleased, and reports what the driver refused.
func TestTrimCountsWhatItReleased(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(8 * page)
	keepChunks(t, w, 2, 2, 2)
	w.arm(2)
	freed, err := d.Trim(0)
	w.disarm()
	require.ErrorIs(t, err, errInjected)
	require.EqualValues(t, 4*page, freed)
	require.EqualValues(t, 2*page, d.Stats().Quarantined)
	w.end()
}

// TestKeptMemoryIsReleasedWhenMemoryRunsOut, for every Device of the process on the
// ordinal and for every operation. The failed call is made once more and no more.
func TestKeptMemoryIsReleasedWhenMemoryRunsOut(t *testing.T) {
	needs := map[string]func(t *testing.T, d *vmm.Device) (end func() error){
		"a range grows": func(t *testing.T, d *vmm.Device) func() error {
			g := newRange(t, d, vmm.RangeOptions{Max: 64 * page})
			require.NoError(t, g.Append(pattern(14*page, 3)))
			return g.Close
		},
		"a chunk": func(t *testing.T, d *vmm.Device) func() error {
			c, err := d.Create(16*page, vmm.Prop{Share: vmm.ShareFD})
			require.NoError(t, err)
			return c.Close
		},
		"an allocation": func(t *testing.T, d *vmm.Device) func() error {
			g, err := d.Alloc(16 * page)
			require.NoError(t, err)
			return g.Close
		},
	}
	for name, need := range needs {
		for i := range 2 {
			t.Run(name, func(t *testing.T) {
				w := small(t, 1, 16)
				d := w.devs[0]
				other, err := vmm.OpenDriver(w.drv, 0)
				require.NoError(t, err)
				d.SetReleaseThreshold(100 * page)
				keepChunks(t, w, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
				require.EqualValues(t, 16*page, d.Stats().Cached)
				failed := w.drv.Counts()["Create"].Failed
				end := need(t, []*vmm.Device{d, other}[i])
				require.Equal(t, failed+1, w.drv.Counts()["Create"].Failed)
				require.Zero(t, d.Stats().Cached)
				require.NoError(t, end())
				require.NoError(t, other.Close())
				w.end()
			})
		}
	}
}

// TestMemoryThatRunsOutInMap is tried a second time as well.
func TestMemoryThatRunsOutInMap(t *testing.T) {
	for _, name := range []string{"Map", "SetAccess"} {
		w := newWorld(t, 1)
		d := w.devs[0]
		d.SetReleaseThreshold(100 * page)
		keepChunks(t, w, 4, 4)
		g := newRange(t, d, vmm.RangeOptions{Max: 64 * page})
		w.refuse(name, 1, vmm.ErrOutOfMemory)
		require.NoError(t, g.Grow(2*page))
		require.Zero(t, d.Stats().Cached, "cached memory was released for it")
		require.EqualValues(t, 2*page, g.Cap())

		// With nothing kept there is no second try.
		w.refuse(name, 1, vmm.ErrOutOfMemory)
		before := w.made(name)
		require.ErrorIs(t, g.Grow(4*page), vmm.ErrOutOfMemory)
		require.LessOrEqual(t, w.made(name), before+1, "mapped before the refusal, if at all")
		require.EqualValues(t, 2*page, g.Cap())
		require.NoError(t, g.Close())
		w.end()
	}
}

// TestAFailedGrowthPutsBackWhatItTook from the cache.
func TestAFailedGrowthPutsBackWhatItTook(t *testing.T) {
	for _, name := range []string{"Create", "Map", "SetAccess"} {
		w := newWorld(t, 1)
		d := w.devs[0]
		d.SetReleaseThreshold(100 * page)
		keepChunks(t, w, 4)
		g := newRange(t, d, vmm.RangeOptions{Max: 64 * page})
		w.refuse(name, 1, errInjected)
		require.ErrorIs(t, g.Grow(6*page), errInjected)
		require.GreaterOrEqual(t, d.Stats().Cached, uint64(4*page))
		require.Zero(t, d.Stats().Hits, "nothing came of it")
		require.Zero(t, g.Cap())
		require.Zero(t, w.made("Release"))
		require.NoError(t, g.Grow(6*page))
		require.EqualValues(t, 6*page, d.Stats().Committed)
		require.NoError(t, g.Close())
		w.end()
	}
}

// TestKeptMemoryIsForPrivateRanges: Create and Alloc get new memory, and so does a range
// that is shared, compressed or for RDMA.
func TestKeptMemoryIsForPrivateRanges(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(100 * page)
	keepChunks(t, w, 1, 2)
	require.EqualValues(t, 3*page, d.Stats().Cached)
	c := chunk(t, w, page)
	a, err := d.Alloc(2 * page)
	require.NoError(t, err)
	b := make([]byte, 2*page)
	_, err = a.ReadAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, make([]byte, 2*page), b)
	g := newRange(t, d, vmm.RangeOptions{Max: 8 * page, Share: vmm.ShareFD})
	require.NoError(t, g.Grow(2*page))
	require.EqualValues(t, 3*page, d.Stats().Cached)
	require.Zero(t, d.Stats().Hits)
	require.NoError(t, a.Grow(0))
	require.NoError(t, a.Close())
	require.NoError(t, g.Close())
	require.NoError(t, c.Close())
	w.end()
}

// peek reports whether an importer of a range's memory sees what another range writes after
// the first has released it. If pretend is set, the library takes the memory for private.
func peek(t *testing.T, pretend bool) (seen bool) {
	t.Helper()
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(100 * page)
	o := vmm.RangeOptions{Max: 8 * page, Chunk: page, Share: vmm.ShareFD}
	g := newRange(t, d, o)
	require.NoError(t, g.Append(pattern(page, 1)))
	if pretend {
		vmm.PretendPrivate(g.Segments()[0])
	}
	c, err := g.Segments()[0].Chunk()
	require.NoError(t, err)
	fd, err := c.Export()
	require.NoError(t, err)
	require.NoError(t, c.Close())
	f := os.NewFile(uintptr(fd), "chunk")
	in, err := d.Import(fd, page, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	require.NoError(t, f.Close())
	r, err := d.Reserve(page, vmm.ReserveOptions{})
	require.NoError(t, err)
	require.NoError(t, r.Map(0, in))
	require.NoError(t, in.Close())

	require.NoError(t, g.SetLen(0))
	require.NoError(t, g.Clip())
	h := newRange(t, d, o)
	secret := pattern(page, 99)
	require.NoError(t, h.Append(secret))
	b := make([]byte, page)
	require.NoError(t, d.CopyOut(b, r.Ptr()))
	seen = string(b) == string(secret)
	if !pretend {
		require.Zero(t, d.Stats().PeakCached)
	}
	require.NoError(t, r.Close())
	require.NoError(t, h.Close())
	require.NoError(t, g.Close())
	w.end()
	return seen
}

// TestSharedMemoryIsNeverKept: contract 6.
func TestSharedMemoryIsNeverKept(t *testing.T) {
	require.False(t, peek(t, false))
}

// TestSharedMemoryThatWereKeptWouldShow is the negative control.
func TestSharedMemoryThatWereKeptWouldShow(t *testing.T) {
	require.True(t, peek(t, true), "else the test above proves nothing")
}

func TestWhatIsNeverKept(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(100 * page)
	for _, p := range []vmm.Prop{{Share: vmm.ShareFD}, {Share: vmm.ShareFD | vmm.ShareReadOnly}, {RDMA: true}} {
		c, err := d.Create(page, p)
		if errors.Is(err, vmm.ErrNotSupported) || errors.Is(err, vmm.ErrInvalid) {
			continue
		}
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.Zero(t, d.Stats().Cached, "%+v", p)
	}
	c, err := d.Create(page, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	fd, err := c.Export()
	require.NoError(t, err)
	for _, p := range []vmm.Prop{{Share: vmm.ShareFD}, {}} {
		in, err := d.Import(fd, page, p)
		if p.Share == 0 && err != nil {
			continue // a driver may need to know
		}
		require.NoError(t, err)
		require.NoError(t, in.Close())
		require.Zero(t, d.Stats().Cached, "imported")
	}
	require.NoError(t, os.NewFile(uintptr(fd), "chunk").Close())
	require.NoError(t, c.Close())
	require.Zero(t, d.Stats().PeakCached)
	w.end()
}

// TestMemoryOfAnotherDeviceIsNotKept: no range of this device could use it.
func TestMemoryOfAnotherDeviceIsNotKept(t *testing.T) {
	w := newWorld(t, 2)
	d := w.devs[0]
	d.SetReleaseThreshold(100 * page)
	c, err := d.Create(page, vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice, ID: 1}})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.Zero(t, d.Stats().Cached)
	w.end()
}

// TestAStaleSegmentHasNoChunk: a segment of memory that was clipped, kept and reused by
// another range.
func TestAStaleSegmentHasNoChunk(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(100 * page)
	g := ranged(t, w, page)
	old := g.Segments()[0]
	c, err := old.Chunk()
	require.NoError(t, err)
	require.NoError(t, g.SetLen(0))
	require.NoError(t, g.Clip())
	require.Zero(t, d.Stats().Cached, "the chunk still has it")
	again, err := old.Chunk()
	require.NoError(t, err)
	require.NoError(t, again.Close())
	require.NoError(t, c.Close())
	require.EqualValues(t, page, d.Stats().Cached)
	_, err = old.Chunk()
	require.ErrorIs(t, err, vmm.ErrClosed, "kept")
	h := ranged(t, w, page)
	require.EqualValues(t, 1, d.Stats().Hits)
	_, err = old.Chunk()
	require.ErrorIs(t, err, vmm.ErrClosed, "another range's")
	require.NoError(t, h.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestCacheUnderRace: many goroutines grow, shrink and trim, within a limit that is not
// enough for all.
func TestCacheUnderRace(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	again, err := vmm.OpenDriver(w.drv, 0)
	require.NoError(t, err)
	const limit = 48 * page
	d.SetLimit(limit)
	d.SetReleaseThreshold(limit)
	var wg sync.WaitGroup
	for i := range 4 {
		own := []*vmm.Device{d, again}[i%2]
		wg.Go(func() {
			g := newRange(t, own, vmm.RangeOptions{Max: 64 * page, Chunk: uint64(i/2) * page})
			for n := range 60 {
				want := pattern((n%11+1)*page/2, byte(n))
				if err := g.Append(want); err != nil {
					if !errors.Is(err, vmm.ErrOutOfMemory) {
						t.Error(err)
					}
					continue
				}
				got := make([]byte, len(want))
				if err := own.CopyOut(got, g.Ptr()); err != nil || string(got) != string(want) {
					t.Errorf("%v, or another range's bytes", err)
				}
				if err := errors.Join(g.SetLen(0), g.Clip()); err != nil {
					t.Error(err)
				}
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() {
		for n := range 200 {
			again.SetReleaseThreshold(uint64(n%40) * page)
			if _, err := d.Trim(uint64(n%20) * page); err != nil {
				t.Error(err)
			}
			a, b := d.Stats(), again.Stats()
			if a.Cached > a.Committed || b.Cached > b.Committed || a.Committed > limit || b.Committed > limit {
				t.Error(a, b)
			}
		}
	})
	wg.Wait()
	require.NoError(t, again.Close())
	_, err = d.Trim(0)
	require.NoError(t, err)
	require.Zero(t, d.Stats().Committed)
	c, err := d.Create(limit, vmm.Prop{})
	require.NoError(t, err, "the limit's count is exact")
	require.NoError(t, c.Close())
	w.end()
}
