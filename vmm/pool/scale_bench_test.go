package pool_test

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestPairsBehindALaggingStream: what a pair costs whose blocks are freed in a stream that is held
// back, with so many that wait there already.
func TestPairsBehindALaggingStream(t *testing.T) {
	const pairs = 1_000
	rounds := testgate.Effort(1, 5, 5)
	if onCUDA {
		rounds = 30 // the machine has cores to itself
	}
	behindStream := func(waiting int) func() time.Duration {
		return func() time.Duration {
			w := worldOf(t, 1, host.New(host.Config{Devices: 1, Memory: 8 << 30}))
			g := w.gates(0)
			p, from, to := w.pool(pool.Options{ReleaseThreshold: math.MaxUint64}), w.stream(0), w.stream(0)
			open := g.hold(to)
			pair := func() {
				x, err := p.Alloc(from, 4*kib)
				require.NoError(t, err)
				require.NoError(t, p.Free(to, x))
			}
			for range waiting {
				pair()
			}
			runtime.GC()
			start := time.Now()
			for range pairs {
				pair()
			}
			took := time.Since(start)
			open()
			closeAll(t, from, to, p)
			w.end()
			return took
		}
	}
	took := versus.Rounds(rounds, behindStream(100_000), behindStream(1_000))
	low, high := versus.Interval(took[0], took[1])
	out := versus.NewTable("behind 1,000, ns a pair\tbehind 100,000\ttimes as long\t95 %\ttarget")
	out.Add("%.0f\t%.0f\t%.2f\t[%.2f, %.2f]\t%s", versus.Median(took[1])/pairs, versus.Median(took[0])/pairs,
		versus.Median(took[0])/versus.Median(took[1]), low, high, versus.Verdict(high <= 2))
	out.Log(t)
}

// everyOtherFree is a pool with n chunks, every other one of which is free.
func everyOtherFree(b *testing.B, n int) (d *vmm.Device, p *pool.Pool, s *vmm.Stream, live []pool.Block) {
	b.Helper()
	d, err := vmm.OpenDriver(nulldriver.NewSized(139<<30), 0)
	require.NoError(b, err)
	p, err = pool.New(d, pool.Options{ReleaseThreshold: math.MaxUint64, ChunkSize: 2 * mib})
	require.NoError(b, err)
	s, err = d.NewStream()
	require.NoError(b, err)
	var all []pool.Block
	for range n {
		all = append(all, alloc(b, p, s, 2*mib))
	}
	for i, x := range all {
		if i%2 == 0 {
			require.NoError(b, p.Free(s, x))
		} else {
			live = append(live, x)
		}
	}
	require.NoError(b, s.Sync())
	return d, p, s, live
}

func unscatter(b *testing.B, d *vmm.Device, p *pool.Pool, s *vmm.Stream, live []pool.Block) {
	b.Helper()
	for _, x := range live {
		require.NoError(b, p.Free(s, x))
	}
	closeAll(b, s, p, d)
}

// BenchmarkTrimScattered: what TrimTo costs for each of so many runs of one chunk.
func BenchmarkTrimScattered(b *testing.B) {
	for _, runs := range []int{3_200, 32_000} {
		b.Run(fmt.Sprint(runs), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				d, p, s, live := everyOtherFree(b, 2*runs)
				b.StartTimer()
				freed, err := p.TrimTo(0)
				b.StopTimer()
				require.NoError(b, err)
				require.EqualValues(b, runs*2*mib, freed)
				unscatter(b, d, p, s, live)
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*runs), "ns/run")
		})
	}
}

// BenchmarkAllocAmongHoles: what a block of two chunks costs for which there is no hole but the
// last.
func BenchmarkAllocAmongHoles(b *testing.B) {
	for _, holes := range []int{3_200, 32_000} {
		b.Run(fmt.Sprint(holes), func(b *testing.B) {
			d, p, s, live := everyOtherFree(b, 2*holes)
			_, err := p.TrimTo(0)
			require.NoError(b, err)
			for b.Loop() {
				x := alloc(b, p, s, 3*mib)
				b.StopTimer()
				require.NoError(b, p.Free(s, x))
				require.NoError(b, s.Sync())
				_, err := p.TrimTo(0)
				require.NoError(b, err)
				b.StartTimer()
			}
			b.StopTimer()
			unscatter(b, d, p, s, live)
		})
	}
}
