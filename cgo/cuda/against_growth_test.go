//go:build cgo && linux

package cuda_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/exp/stats"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// clearing is how long to rest after so many bytes were released: the driver clears
// them in the background, and a growth meanwhile waits for that.
func clearing(bytes uint64) time.Duration {
	return time.Duration(float64(bytes) / (16 * gib) * float64(40*time.Millisecond))
}

// stepped is sizes in steps of step up to most. On a device that is too small for
// sixteen steps they are smaller.
func (v *rivals) stepped(step, most uint64) (sizes []uint64) {
	if most < 16*step {
		step = max(most/16/v.gran, 1) * v.gran
	}
	for size := step; size <= most; size += step {
		sizes = append(sizes, size)
	}
	return sizes
}

// byThe64 is sizes in steps of 64 MiB up to 8 GiB.
func (v *rivals) byThe64() []uint64 { return v.stepped(64*mib, min(v.free()/6, 8*gib)) }

// bySteps names a job after its sizes.
func bySteps(sizes []uint64) string {
	return fmt.Sprintf("by %s to %s", mibs(sizes[0]), mibs(sizes[len(sizes)-1]))
}

// keeping is v with a Device of its own that keeps every chunk until the test ends.
func (v *rivals) keeping() *rivals {
	v.Helper()
	dev, err := vmm.OpenDriver(v.dev.Driver(), 0)
	require.NoError(v, err)
	dev.SetReleaseThreshold(math.MaxUint64)
	v.Cleanup(func() {
		_, err := dev.Trim(0)
		require.NoError(v, err)
		require.NoError(v, dev.Close())
	})
	w := *v
	w.dev = dev
	return &w
}

// kept is a growth from memory that exists already, on both sides: ours is kept by the
// Device, C's is in handles.
type kept struct {
	*growth
	laid bool // C has mapped its handles
}

func (v *rivals) kept(sizes ...uint64) *kept {
	v.Helper()
	w := &kept{growth: &growth{rivals: v.keeping(), opts: vmm.RangeOptions{Max: sizes[len(sizes)-1]}, sizes: sizes}}
	w.g = w.fresh()
	v.Cleanup(func() { require.NoError(v, w.g.Close()) })
	w.recorded(w.g, sizes) // takes the memory
	require.NoError(v, w.g.Clip())
	w.steps = w.recorded(w.g, sizes)
	w.total = w.g.Cap()
	require.NoError(v, w.g.Clip())

	var err error
	w.p, err = w.loop.Reserve(w.total, w.gran)
	require.NoError(v, err)
	v.Cleanup(func() { require.NoError(v, w.loop.Free(w.p, w.total)) })
	w.handles, _, err = w.loop.Grow(w.p, w.steps)
	require.NoError(v, err)
	require.NoError(v, w.loop.Unmap(w.p, w.total))
	v.Cleanup(func() {
		for _, h := range w.handles {
			require.NoError(v, w.loop.Release(h))
		}
	})
	return w
}

func (w *kept) c() time.Duration {
	took, err := w.loop.Regrow(w.p, w.steps, w.handles)
	require.NoError(w, err)
	w.laid = true
	return took
}

func (w *kept) undo() {
	require.Contains(w, []uint64{0, w.total}, w.g.Cap())
	require.NoError(w, w.g.Clip())
	if w.laid {
		require.NoError(w, w.loop.Unmap(w.p, w.total))
		w.laid = false
	}
}

// warmPool makes the default pool keep everything until the test ends.
func (v *rivals) warmPool() {
	v.Helper()
	require.NoError(v, v.loop.SetPoolThreshold(math.MaxUint64))
	v.Cleanup(func() { require.NoError(v, v.loop.SetPoolThreshold(0)) })
}

// trial is a job to be made, and how many rounds of it there are on a GPU.
type trial struct {
	name string
	n    int
	make func(*rivals) (job, remark)
}

// remark is a text for a result, beside its line in the table. It may be nil.
type remark func(result) string

// faster says how many times as long the k-th rival takes, and the target.
func faster(r result, k int, want float64) string {
	ours, theirs := stats.Quantiles(r.took[0], 0.5)[0], stats.Quantiles(r.took[k], 0.5)[0]
	return fmt.Sprintf("%.1f times as fast as %s; target %.1f: %s", theirs/ours, r.against[k-1], want, versus.Verdict(theirs >= want*ours))
}

// trials are in an order in which the memory that one releases does not delay the next.
func trials() []trial {
	return []trial{
		{"warm steps", 1500, (*rivals).warmSteps},
		{"kept doubling", 300, (*rivals).keptDoubling},
		{"clip and regrow", 1000, (*rivals).clipAndRegrow},
		{"cold steps", 600, (*rivals).coldSteps},
		{"cold steps against moving", 5, (*rivals).movingSteps},
		{"whole device by fixed chunks", 20, func(v *rivals) (job, remark) { return v.wholeDevice(true) }},
		{"whole device by the ladder", 20, func(v *rivals) (job, remark) { return v.wholeDevice(false) }},
	}
}

// warmSteps grows in steps from cached memory.
func (v *rivals) warmSteps() (job, remark) {
	w := v.kept(v.byThe64()...)
	return job{
		name: "warm, " + bySteps(w.sizes), against: []string{"C"},
		ways:    []func() time.Duration{w.ours, w.c},
		prepare: func() {},
		undo:    w.undo,
	}, nil
}

// coldSteps grows in steps by new memory.
func (v *rivals) coldSteps() (job, remark) {
	w := v.growth(vmm.RangeOptions{}, v.byThe64()...)
	return job{
		name: "cold, " + bySteps(w.sizes), against: []string{"C"},
		ways:    []func() time.Duration{w.ours, w.c},
		prepare: w.prepare,
		undo:    w.undo,
		apart:   true,
		rest:    clearing(w.total),
	}, nil
}

// movingSteps is coldSteps compared with a reallocation at each step. The Range may
// become twice as large, so that only its own rule limits the memory it takes.
func (v *rivals) movingSteps() (job, remark) {
	sizes := v.byThe64()
	size := sizes[len(sizes)-1]
	w := v.growth(vmm.RangeOptions{Max: 2 * size}, sizes...)
	return job{
			name: "cold, " + bySteps(sizes), against: []string{"cuMemAlloc + copy + free"},
			ways: []func() time.Duration{
				w.ours,
				func() time.Duration { return v.took(v.loop.Realloc(sizes, false)) },
			},
			prepare: w.prepare,
			undo:    w.undo,
			apart:   true,
			rest:    clearing(w.total),
		}, func(r result) string {
			moving := size
			if n := len(sizes); n > 1 {
				moving += sizes[n-2]
			}
			return fmt.Sprintf("%s; peak memory over data: ours %.3f, moving %.3f",
				faster(r, 1, 30), float64(w.total)/float64(size), float64(moving)/float64(size))
		}
}

// keptDoubling doubles from cached memory, compared with a pool that keeps memory too.
func (v *rivals) keptDoubling() (job, remark) {
	w := v.kept(v.doublings()...)
	v.warmPool()
	return job{
			name: "kept, double from 2 MiB to " + mibs(w.total), against: []string{"C", "warm pool + copy"},
			ways: []func() time.Duration{
				w.ours, w.c,
				func() time.Duration { return v.took(v.loop.Realloc(w.sizes, true)) },
			},
			prepare: func() {},
			undo:    w.undo,
		}, func(r result) string {
			return faster(r, 2, 1)
		}
}

// wholeDevice fills 120 GiB, or what the device has, by 256 MiB: in chunks of
// that size, or as the ladder has it.
func (v *rivals) wholeDevice(fixed bool) (job, remark) {
	sizes := v.stepped(256*mib, min(v.free()/100*90, 120*gib))
	o, name := vmm.RangeOptions{}, "by the ladder"
	if fixed {
		o.Chunk, name = sizes[0], "one chunk each"
	}
	w := v.growth(o, sizes...)
	var rounds []float64
	ours := func() time.Duration {
		each := make([]time.Duration, len(sizes))
		took := w.timed(func() error {
			for i, size := range sizes {
				start := time.Now()
				if err := w.g.Grow(size); err != nil {
					return err
				}
				each[i] = time.Since(start)
			}
			return nil
		})
		rounds = append(rounds, tenths(each))
		return took
	}
	j := job{
		name: bySteps(sizes) + ", " + name, against: []string{"C"},
		ways:    []func() time.Duration{ours, w.c},
		prepare: w.prepare,
		undo:    w.undo,
		apart:   true,
		rest:    3 * clearing(w.total), // there is no other memory meanwhile
	}
	if !fixed {
		return j, nil // chunks of many sizes differ in cost
	}
	return j, func(result) string {
		return fmt.Sprintf("a chunk of the last tenth costs %.2f times one of the first; target 1.5 at most", stats.Quantiles(rounds, 0.5)[0])
	}
}

// tenths is the ratio of the times of the last and the first tenth of the steps.
func tenths(each []time.Duration) float64 {
	n := max(len(each)/10, 1)
	var first, last time.Duration
	for i := range n {
		first += each[i]
		last += each[len(each)-1-i]
	}
	return float64(last) / float64(first)
}

// clipAndRegrow clips 256 MiB and grows by them again, on a Device that keeps them and
// on one that does not.
func (v *rivals) clipAndRegrow() (job, remark) {
	size := min(256*mib, v.free()/6/v.gran*v.gran)
	cycle := func(w *rivals) func() time.Duration {
		g, err := w.dev.NewRange(vmm.RangeOptions{Max: size})
		require.NoError(v, err)
		v.Cleanup(func() { require.NoError(v, g.Close()) })
		require.NoError(v, g.Grow(size))
		return func() time.Duration { return v.timed(func() error { return clipAndGrow(g, size) }) }
	}
	return job{
			name: "Clip and regrow " + mibs(size), against: []string{"no cached memory"},
			ways:    []func() time.Duration{cycle(v.keeping()), cycle(v)},
			prepare: func() {},
			undo:    func() {},
			rest:    2 * time.Millisecond, // for the memory that one of the two has released
		}, func(r result) string {
			return faster(r, 1, 1.7)
		}
}

func clipAndGrow(g *vmm.Range, size uint64) error {
	if err := g.Clip(); err != nil {
		return err
	}
	return g.Grow(size)
}

// compareGrowth runs the trials one after the other and frees everything in between.
// most limits the rounds.
func compareGrowth(t *testing.T, v *rivals, most int) {
	var results []result
	var remarks []string
	for _, c := range trials() {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			w := *v
			w.TB = t
			j, remark := c.make(&w)
			r := w.compete(min(c.n, most), j)
			results = append(results, r)
			if remark != nil {
				remarks = append(remarks, r.name+": "+remark(r))
			}
		})
	}
	t.Log("\n" + table(results...) + strings.Join(remarks, "\n"))
}

// TestAgainstCGrowth measures long growth, cold and from cached memory. As in
// TestAgainstC, a missed target is reported and fails no test.
func TestAgainstCGrowth(t *testing.T) {
	compareGrowth(t, newRivals(t, device(t), "libcuda.so.1"), math.MaxInt)
}

// The times of the fake driver mean nothing. The test is that every trial runs and
// leaves nothing behind.
func TestAgainstCGrowthOnFake(t *testing.T) {
	v, _ := rivalsOnFake(t)
	compareGrowth(t, v, testgate.Effort(1, 4, 4))
}

// A comparison is fair if both sides make the same calls.
func TestSameGrowthCallsAsC(t *testing.T) {
	sameCalls(t, func(v *rivals) []job {
		return firstOf(v, (*rivals).coldSteps, func(v *rivals) (job, remark) { return v.wholeDevice(true) },
			func(v *rivals) (job, remark) { return v.wholeDevice(false) })
	})
}

func TestSameCallsAsCFromCache(t *testing.T) {
	calls := sameCalls(t, func(v *rivals) []job { return firstOf(v, (*rivals).warmSteps, (*rivals).keptDoubling) })
	require.Zero(t, calls["cuMemCreate"])
}

func firstOf(v *rivals, trials ...func(*rivals) (job, remark)) (jobs []job) {
	for _, make := range trials {
		j, _ := make(v)
		jobs = append(jobs, j)
	}
	return jobs
}

func TestClipAndRegrowFromCache(t *testing.T) { regrowsFromCache(t, device(t), 256*mib) }

func TestClipAndRegrowFromCacheOnFake(t *testing.T) {
	v, _ := rivalsOnFake(t)
	regrowsFromCache(t, v.dev.Driver(), 32*mib)
}

// regrowsFromCache checks that after the first time a clip and a growth neither
// allocate nor release memory.
func regrowsFromCache(t *testing.T, drv driver.Driver, size uint64) {
	counted := drivertest.Inject(drv, nil)
	dev, err := vmm.OpenDriver(counted, 0)
	require.NoError(t, err)
	dev.SetReleaseThreshold(math.MaxUint64)
	g, err := dev.NewRange(vmm.RangeOptions{Max: size})
	require.NoError(t, err)
	require.NoError(t, g.Grow(size))
	require.NoError(t, clipAndGrow(g, size))
	before := counted.Counts()
	const cycles = 20
	for range cycles {
		require.NoError(t, clipAndGrow(g, size))
	}
	after := counted.Counts()
	require.Equal(t, before["Create"], after["Create"])
	require.Equal(t, before["Release"], after["Release"])
	require.Equal(t, before["Map"].Bytes+cycles*size, after["Map"].Bytes, "it was done at all")
	require.NoError(t, g.Close())
	_, err = dev.Trim(0)
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	require.NoError(t, counted.Balanced())
}

// On a large device the sizes are those in the trials' names.
func TestSteppedSizes(t *testing.T) {
	v := &rivals{gran: 2 * mib}
	require.Len(t, v.stepped(64*mib, 8*gib), 128)
	require.Equal(t, uint64(8*gib), slices.Max(v.stepped(64*mib, 8*gib)))
	require.Equal(t, []uint64{2 * mib, 4 * mib, 6 * mib}, v.stepped(64*mib, 7*mib))
	require.Len(t, v.stepped(256*mib, 120*gib), 480)
}
