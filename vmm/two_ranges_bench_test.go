package vmm_test

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/vmm"
)

// BenchmarkTwoRanges compares two goroutines, each with a range of its own, with one of them alone,
// on a driver whose calls cost nothing. apart has each range on a driver of its own, so that they
// share nothing: what the machine can do.
func BenchmarkTwoRanges(b *testing.B) {
	const chunk, size = 2 << 20, 64
	ops := map[string]func(g *vmm.Range) error{
		"append": func(g *vmm.Range) error {
			if g.Len() == chunk {
				if err := g.SetLen(0); err != nil {
					return err
				}
			}
			var data [size]byte
			return g.Append(data[:])
		},
		"grow+clip": func(g *vmm.Range) error {
			if err := g.Grow(chunk); err != nil {
				return err
			}
			return g.Clip()
		},
		"read": func(g *vmm.Range) error {
			var data [size]byte
			_, err := g.ReadAt(data[:], 0)
			return err
		},
	}
	for _, name := range slices.Sorted(maps.Keys(ops)) {
		for _, apart := range []bool{false, true} {
			where := "together"
			if apart {
				where = "apart"
			}
			b.Run("op="+name+"/"+where, func(b *testing.B) { benchTwoRanges(b, apart, ops[name]) })
		}
	}
}

func benchTwoRanges(b *testing.B, apart bool, op func(g *vmm.Range) error) {
	const chunk, times = 2 << 20, 10_000
	var ranges []*vmm.Range
	var devices []*vmm.Device
	drv := nulldriver.New()
	for i := range 2 {
		if i == 0 || apart {
			d, err := vmm.OpenDriver(drv, 0)
			require.NoError(b, err)
			devices = append(devices, d)
			drv = nulldriver.New()
		}
		g, err := devices[len(devices)-1].NewRange(vmm.RangeOptions{Max: 4 * chunk, Chunk: chunk})
		require.NoError(b, err)
		require.NoError(b, g.Append(make([]byte, 64)))
		ranges = append(ranges, g)
	}
	// run is operations per nanosecond of n goroutines.
	run := func(n int) float64 {
		var ready, done sync.WaitGroup
		start := make(chan struct{})
		for _, g := range ranges[:n] {
			ready.Add(1)
			done.Go(func() {
				ready.Done()
				<-start
				for range times {
					if err := op(g); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		ready.Wait()
		began := time.Now()
		close(start)
		done.Wait()
		return float64(n*times) / float64(time.Since(began).Nanoseconds())
	}
	var ones, twos []float64
	for b.Loop() {
		ones, twos = append(ones, run(1)), append(twos, run(2))
	}
	one, two := slices.Max(ones), slices.Max(twos)
	slices.Sort(ones)
	slices.Sort(twos)
	b.ReportMetric(1/one, "one-ns/op")
	b.ReportMetric(two/one, "times-best")
	b.ReportMetric(twos[len(twos)/2]/ones[len(ones)/2], "times-median")
	for _, g := range ranges {
		require.NoError(b, g.Close())
	}
	for _, d := range devices {
		require.NoError(b, d.Close())
	}
}
