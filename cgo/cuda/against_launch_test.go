//go:build cgo && linux

package cuda_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/exp/stats"

	"github.com/cuvmm/cuvmm/vmm/driver"
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
	return w
}

// ours is a batch from Go, without a wait.
func (w *launches) ours() time.Duration {
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

// c is a batch from C.
func (w *launches) c() time.Duration {
	return w.took(w.loop.Launch(uint64(w.f), w.l.Grid.X, w.l.Block.X, w.l.Args, batch))
}

// compare times batches of both, in turn, as long as more is true. It returns the
// medians in nanoseconds for each launch.
func (w *launches) compare(more func() bool) (ours, c float64) {
	var took [2][]float64
	for i := 0; more(); i++ {
		for j := range 2 {
			way := (i + j) % 2
			took[way] = append(took[way], float64([]func() time.Duration{w.ours, w.c}[way]())/batch)
			require.NoError(w, w.dev.SyncStream(w.s))
			require.NoError(w, w.loop.Sync())
		}
	}
	return stats.Quantiles(took[0], 0.5)[0], stats.Quantiles(took[1], 0.5)[0]
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
func BenchmarkLaunch(b *testing.B) {
	w := newRivals(b, device(b), libcuda).launches()
	w.compare(times(10))
	ours, c := w.compare(b.Loop)
	b.ReportMetric(ours, "Go-ns/launch")
	b.ReportMetric(c, "C-ns/launch")
	b.ReportMetric(ours-c, "added-ns/launch")
}

// TestLaunchAgainstC reports what Go adds to a launch. A missed target is only reported.
func TestLaunchAgainstC(t *testing.T) {
	w := newRivals(t, device(t), libcuda).launches()
	w.compare(times(100))
	ours, c := w.compare(times(2000))
	outcome := "met"
	if ours-c > mostAdded {
		outcome = "not met"
	}
	t.Logf("a launch, p50 of batches of %d: Go %.0f ns, C %.0f ns, Go adds %.0f, at most %d: %s", batch, ours, c, ours-c, mostAdded, outcome)
}

// A comparison is fair if both sides make the same calls: Go asks also which context
// it has pushed. The times of the fake driver mean nothing.
func TestLaunchSameCallsAsC(t *testing.T) {
	v, fake := rivalsOnFake(t)
	w := v.launches()
	w.compare(times(2))
	var last [2]string
	for i, way := range []func() time.Duration{w.ours, w.c} {
		calls := map[string]int{"": 3 * batch, "cuLaunchKernel": batch, "cuCtxPushCurrent_v2": batch, "cuCtxPopCurrent_v2": batch, "cuCtxGetId": 0}
		if i == 0 {
			calls[""], calls["cuCtxGetId"] = 4*batch, batch
		}
		for symbol := range calls {
			calls[symbol] += fake.Calls(symbol)
		}
		way()
		for symbol, want := range calls {
			require.Equal(t, want, fake.Calls(symbol), symbol)
		}
		last[i] = fake.Last("cuLaunchKernel")
	}
	require.Equal(t, fmt.Sprintf("cuLaunchKernel f=%#x grid=1,1,1 block=32,1,1 shared=0 stream=%#x args=%040x", uint64(w.f), uint64(w.s), 0), last[0])
	require.Contains(t, last[1], "grid=1,1,1 block=32,1,1 shared=0 stream=")
}
