//go:build cgo && linux

package cuda_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// emptyKernel does nothing. The comment is for the fake driver.
const emptyKernel = `// params empty 8 8 4
.version 7.0
.target sm_52
.address_size 64
.visible .entry empty(
	.param .u64 p,
	.param .u64 n,
	.param .u32 value
)
{
	ret;
}
`

// launches are one kernel that Go and C launch in the same way, each on a stream of its
// own.
type launches struct {
	*rivals
	dev driver.Device
	f   driver.Function
	l   *driver.Launch
	s   driver.Stream

	bound *kernel.Bound // the same kernel with a vector among its arguments, by package kernel
	on    *vmm.Stream
}

// batch is how many launches are timed as one. A stream takes 1,024 before a launch
// waits.
const batch = 256

func (v *rivals) launches() *launches {
	raw, err := v.dev.Raw()
	require.NoError(v, err)
	w := &launches{rivals: v, dev: raw, l: fillBytes(0, 0, 0)}
	w.l.Grid, w.l.Block = driver.Dim{X: 1}, driver.Dim{X: 32}
	kernels := raw.(driver.Launcher)
	m, log, err := kernels.LoadModule(driver.Code{Image: []byte(emptyKernel)})
	require.NoError(v, err, log)
	v.Cleanup(func() { require.NoError(v, kernels.UnloadModule(m)) })
	w.f, err = kernels.Function(m, "empty")
	require.NoError(v, err)
	w.s, err = raw.NewStream()
	require.NoError(v, err)
	v.Cleanup(func() { require.NoError(v, raw.FreeStream(w.s)) })

	mod, err := kernel.Load(v.dev, kernel.Code{Image: []byte(emptyKernel)})
	require.NoError(v, err)
	v.Cleanup(func() { require.NoError(v, mod.Close()) })
	f, err := mod.Func("empty")
	require.NoError(v, err)
	x, err := growable.New[float32](v.dev, growable.Options{MaxLen: 1 << 20})
	require.NoError(v, err)
	v.Cleanup(func() { require.NoError(v, x.Close()) })
	require.NoError(v, x.Append(make([]float32, 1<<10)...))
	w.bound, err = f.Bind(kernel.Over(1, 32), x, uint32(0))
	require.NoError(v, err)
	w.on, err = v.dev.NewStream()
	require.NoError(v, err)
	v.Cleanup(func() { require.NoError(v, w.on.Close()) })
	return w
}

// ours is a batch by package kernel, without a wait.
func (w *launches) ours() time.Duration {
	return w.timed(func() error {
		for range batch {
			if err := w.bound.Launch(w.on); err != nil {
				return err
			}
		}
		return nil
	})
}

// binding is a batch by this package alone, without a wait.
func (w *launches) binding() time.Duration {
	kernels := w.dev.(driver.Launcher)
	return w.timed(func() error {
		for range batch {
			if err := kernels.Launch(w.f, w.l, w.s); err != nil {
				return err
			}
		}
		return nil
	})
}

// crossing is a batch of the same calls in one C function, called from Go for each launch
// and without anything else: the least that Go can do.
func (w *launches) crossing() time.Duration {
	return w.timed(func() error {
		for range batch {
			if err := w.loop.LaunchOne(uint64(w.f), w.l.Grid.X, w.l.Block.X, w.l.Args); err != nil {
				return err
			}
		}
		return nil
	})
}

// c is a batch from C.
func (w *launches) c() time.Duration {
	return w.took(w.loop.Launch(uint64(w.f), w.l.Grid.X, w.l.Block.X, w.l.Args, batch))
}

// compare times batches of each way, in turn, as long as more is true. It returns the
// medians in nanoseconds for each launch.
func (w *launches) compare(more func() bool) (ours, binding, crossing, c float64) {
	ways := []func() time.Duration{w.ours, w.binding, w.crossing, w.c}
	took := make([][]float64, len(ways))
	for i := 0; more(); i++ {
		for j := range ways {
			way := (i + j) % len(ways)
			took[way] = append(took[way], float64(ways[way]())/batch)
			require.NoError(w, w.on.Sync())
			require.NoError(w, w.dev.SyncStream(w.s))
			require.NoError(w, w.loop.Sync())
		}
	}
	return versus.Median(took[0]), versus.Median(took[1]), versus.Median(took[2]), versus.Median(took[3])
}

// times is true n times.
func times(n int) func() bool {
	return func() bool {
		n--
		return n >= 0
	}
}

// mostAdded is how many nanoseconds Go may add to a launch at the median.
const mostAdded = 80

// BenchmarkLaunch is one batch of launches from Go, one from C, and the waits for them.
// The metrics are of launches alone.
func BenchmarkLaunch(b *testing.B) { newRivals(b, device(b), libcuda).launches().bench(b) }

// BenchmarkLaunchOnFake is BenchmarkLaunch on the fake driver. Of its metrics those tell something
// that are differences: C's own time is mostly the fake's.
func BenchmarkLaunchOnFake(b *testing.B) {
	v, _ := rivalsOnFake(b)
	v.launches().bench(b)
}

func (w *launches) bench(b *testing.B) {
	w.compare(times(10))
	ours, binding, crossing, c := w.compare(b.Loop)
	b.ReportMetric(ours, "Go-ns/launch")
	b.ReportMetric(c, "C-ns/launch")
	b.ReportMetric(ours-c, "added-ns/launch")
	b.ReportMetric(binding-c, "added-by-the-binding-ns/launch")
	b.ReportMetric(crossing-c, "added-by-a-crossing-ns/launch")
}

// TestLaunchAgainstC reports what Go adds to a launch. A missed target is only reported.
func TestLaunchAgainstC(t *testing.T) {
	w := newRivals(t, device(t), libcuda).launches()
	w.compare(times(100))
	ours, binding, crossing, c := w.compare(times(2000))
	t.Logf("a launch, p50 of batches of %d: Go %.0f ns, C %.0f ns, Go adds %.0f (the binding %.0f, a crossing alone %.0f), at most %d: %s",
		batch, ours, c, ours-c, binding-c, crossing-c, mostAdded, versus.Verdict(ours-c <= mostAdded))
}

// A comparison is fair if all make the same calls. The times of the fake driver mean
// nothing.
func TestLaunchSameCallsAsC(t *testing.T) {
	v, fake := rivalsOnFake(t)
	w := v.launches()
	w.compare(times(2))
	for _, way := range []func() time.Duration{w.ours, w.binding, w.crossing, w.c} {
		calls := map[string]int{"": 4 * batch, "cuLaunchKernel": batch, "cuCtxPushCurrent_v2": batch, "cuCtxPopCurrent_v2": batch, "cuCtxGetId": batch}
		for symbol := range calls {
			calls[symbol] += fake.Calls(symbol)
		}
		way()
		for symbol, want := range calls {
			require.Equal(t, want, fake.Calls(symbol), symbol)
		}
		require.Contains(t, fake.Last("cuLaunchKernel"), "grid=1,1,1 block=32,1,1 shared=0 stream=")
	}
}
