//go:build cgo && linux

package cuda_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/cgo/internal/cloop"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// rivals are one device, opened by this module and by C.
type rivals struct {
	testing.TB
	dev  *vmm.Device
	loop *cloop.Loop
	gran uint64
}

// newRivals opens device 0 of a driver twice, the second time from the library
// at path.
func newRivals(tb testing.TB, drv driver.Driver, path string) *rivals {
	tb.Helper()
	dev, err := vmm.OpenDriver(drv, 0)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, dev.Close()) })
	loop, err := cloop.Open(path, 0)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, loop.Close()) })
	gran, err := drv.Granularity(driver.Prop{Location: driver.Location{Kind: driver.LocationDevice}})
	require.NoError(tb, err)
	return &rivals{TB: tb, dev: dev, loop: loop, gran: gran}
}

// rivalsOnFake are rivals on a fake driver, which the test must leave clean.
func rivalsOnFake(tb testing.TB) (*rivals, *fakecuda.Library) {
	tb.Helper()
	path := fakecuda.Build(tb)
	fake := fakecuda.Open(tb, path)
	fake.Configure(1, 256*mib)
	drv, err := cuda.Loaded(path)
	require.NoError(tb, err)
	tb.Cleanup(fake.Clean)
	return newRivals(tb, drv, path), fake
}

// job is one task that is done in several ways; the first two are ours and C's.
type job struct {
	name    string
	against []string // the names of the ways from the second on
	ways    []func() time.Duration
	prepare func()
	undo    func()
	apart   bool // undone after each way, not after all
	rest    time.Duration
	most    float64 // the target of the ratio of medians, where it is not mostMedian
}

// timed is how long f took. The error of f is checked afterwards.
func (v *rivals) timed(f func() error) time.Duration {
	v.Helper()
	start := time.Now()
	err := f()
	took := time.Since(start)
	require.NoError(v, err)
	return took
}

// took is a time that C measured.
func (v *rivals) took(d time.Duration, err error) time.Duration {
	v.Helper()
	require.NoError(v, err)
	return d
}

// mapping maps a chunk that is kept: the smallest growth.
func (v *rivals) mapping() job {
	const size = 2 * mib
	r, err := v.dev.Reserve(size, vmm.ReserveOptions{})
	require.NoError(v, err)
	v.Cleanup(func() { require.NoError(v, r.Close()) })
	chunk, err := v.dev.Create(size, vmm.Prop{})
	require.NoError(v, err)
	v.Cleanup(func() { require.NoError(v, chunk.Close()) })
	p, err := v.loop.Reserve(size, v.gran)
	require.NoError(v, err)
	v.Cleanup(func() { require.NoError(v, v.loop.Free(p, size)) })
	h, err := v.loop.Create(size)
	require.NoError(v, err)
	v.Cleanup(func() { require.NoError(v, v.loop.Release(h)) })
	return job{
		name:    "map a kept chunk of 2 MiB",
		against: []string{"C"},
		ways: []func() time.Duration{
			func() time.Duration { return v.timed(func() error { return r.Map(0, chunk) }) },
			func() time.Duration { return v.took(v.loop.Map(p, size, h)) },
		},
		prepare: func() {},
		undo: func() {
			require.NoError(v, r.Unmap(0, size))
			require.NoError(v, v.loop.Unmap(p, size))
		},
	}
}

// growth is the same growth twice: a fresh Range grows to each of sizes, and C maps
// chunks of the same sizes.
type growth struct {
	*rivals
	opts    vmm.RangeOptions
	sizes   []uint64
	steps   [][]uint64
	total   uint64
	g       *vmm.Range
	p       uint64
	handles []uint64
}

func (v *rivals) growth(o vmm.RangeOptions, sizes ...uint64) *growth {
	if o.Max == 0 {
		o.Max = sizes[len(sizes)-1]
	}
	w := &growth{rivals: v, opts: o, sizes: sizes}
	g := w.fresh()
	w.steps = v.recorded(g, sizes)
	w.total = g.Cap()
	require.NoError(v, g.Close())
	return w
}

// recorded grows g to each of sizes and returns the chunks of each growth. Sizes that
// needed no growth are left out.
func (v *rivals) recorded(g *vmm.Range, sizes []uint64) (steps [][]uint64) {
	v.Helper()
	for _, size := range sizes {
		seen := len(g.Segments())
		require.NoError(v, g.Grow(size))
		var step []uint64
		for _, s := range g.Segments()[seen:] {
			step = append(step, s.Size)
		}
		if len(step) > 0 {
			steps = append(steps, step)
		}
	}
	return steps
}

// fresh is an empty Range.
func (w *growth) fresh() *vmm.Range {
	w.Helper()
	g, err := w.dev.NewRange(w.opts)
	require.NoError(w, err)
	return g
}

func (w *growth) prepare() {
	var err error
	w.g = w.fresh()
	w.p, err = w.loop.Reserve(w.total, w.gran)
	require.NoError(w, err)
}

func (w *growth) ours() time.Duration {
	return w.timed(func() error {
		for _, size := range w.sizes {
			if err := w.g.Grow(size); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *growth) c() (took time.Duration) {
	var err error
	w.handles, took, err = w.loop.Grow(w.p, w.steps)
	require.NoError(w, err)
	return took
}

func (w *growth) undo() {
	require.Contains(w, []uint64{0, w.total}, w.g.Cap())
	require.NoError(w, w.g.Close())
	if len(w.handles) > 0 {
		require.NoError(w, w.loop.Unmap(w.p, w.total))
	}
	for _, h := range w.handles {
		require.NoError(w, w.loop.Release(h))
	}
	w.handles = nil
	require.NoError(w, w.loop.Free(w.p, w.total))
}

// cold grows a fresh Range by new memory.
func (v *rivals) cold() job {
	w := v.growth(vmm.RangeOptions{}, 64*mib)
	require.Equal(v, [][]uint64{{64 * mib}}, w.steps)
	return job{
		name:    "cold grow by 64 MiB",
		against: []string{"C"},
		ways:    []func() time.Duration{w.ours, w.c},
		prepare: w.prepare,
		undo:    w.undo,
		// While both exist each create takes 50 or 250 us, alternately.
		apart: true,
	}
}

// doubling grows in place from 2 MiB to 16 GiB, or to a sixth of a smaller device,
// compared with C.
func (v *rivals) doubling() job {
	w, sizes := v.doubled()
	return job{
		name:    "double from 2 MiB to " + mibs(sizes[len(sizes)-1]),
		against: []string{"C"},
		ways:    []func() time.Duration{w.ours, w.c},
		prepare: w.prepare,
		undo:    w.undo,
		apart:   true,
		rest:    40 * time.Millisecond, // clearing 16 GiB takes the driver about 30
	}
}

// doubled is the growth of doubling, and its sizes.
func (v *rivals) doubled() (*growth, []uint64) {
	sizes := v.doublings()
	return v.growth(vmm.RangeOptions{}, sizes...), sizes
}

func (v *rivals) doublings() (sizes []uint64) {
	for size := uint64(2 * mib); size <= min(v.free()/6, 16*gib); size *= 2 {
		sizes = append(sizes, size)
	}
	return sizes
}

// free is how much memory the device has left.
func (v *rivals) free() uint64 {
	v.Helper()
	free, _, err := v.dev.MemInfo()
	require.NoError(v, err)
	return free
}

// moving is doubling compared with allocate, copy and free. It has rounds of its own,
// because the release of so much memory slows the device down for some time.
func (v *rivals) moving() job {
	w, sizes := v.doubled()
	require.NoError(v, v.loop.SetPoolThreshold(math.MaxUint64))
	v.Cleanup(func() { require.NoError(v, v.loop.SetPoolThreshold(0)) })
	return job{
		name:    "double from 2 MiB to " + mibs(sizes[len(sizes)-1]),
		against: []string{"cuMemAlloc + copy + free", "warm pool + copy"},
		ways: []func() time.Duration{
			w.ours,
			func() time.Duration { return v.took(v.loop.Realloc(sizes, false)) },
			func() time.Duration { return v.took(v.loop.Realloc(sizes, true)) },
		},
		prepare: w.prepare,
		undo:    w.undo,
		apart:   true,
	}
}

// TestAgainstC measures what this module adds to the driver's own calls. A missed
// target is reported in the table; only a wrong result fails the test.
func TestAgainstC(t *testing.T) {
	v := newRivals(t, device(t), "libcuda.so.1")
	t.Log("\n" + table(v.compete(2000, v.mapping()), v.compete(2000, v.cold()), v.compete(1000, v.doubling()), v.compete(10, v.moving())))
}

// The times of the fake driver mean nothing. The test is that both sides run and leave
// nothing behind.
func TestAgainstCOnFake(t *testing.T) {
	v, _ := rivalsOnFake(t)
	most, few := testgate.Effort(5, 20, 20), testgate.Effort(2, 8, 8)
	t.Log("\n" + table(v.compete(most, v.mapping()), v.compete(most, v.cold()), v.compete(few, v.doubling()), v.compete(few, v.moving())))
}

// A comparison is fair if both sides make the same calls.
func TestSameCallsAsC(t *testing.T) {
	calls := sameCalls(t, func(v *rivals) []job { return []job{v.mapping(), v.cold(), v.doubling()} })
	require.Positive(t, calls["cuMemCreate"])
}

// sameCalls checks that the first two ways of jobs on the fake driver make the same
// calls, and returns how many.
func sameCalls(t *testing.T, jobs func(*rivals) []job) map[string]int {
	v, fake := rivalsOnFake(t)
	total := map[string]int{}
	counted := func(way func() time.Duration) map[string]int {
		calls := map[string]int{}
		for _, symbol := range []string{"", "cuMemCreate", "cuMemMap", "cuMemSetAccess"} {
			calls[symbol] = -fake.Calls(symbol)
		}
		way()
		for symbol := range calls {
			calls[symbol] += fake.Calls(symbol)
		}
		return calls
	}
	for _, j := range jobs(v) {
		var calls [2]map[string]int
		for i := range calls {
			if i == 0 || j.apart {
				j.prepare()
			}
			calls[i] = counted(j.ways[i])
			if i == len(calls)-1 || j.apart {
				j.undo()
			}
		}
		ours, c := calls[0], calls[1]
		require.Equal(t, c, ours, j.name)
		require.Positive(t, c["cuMemMap"], j.name)
		for symbol, n := range ours {
			total[symbol] += n
		}
	}
	return total
}
