package vmm_test

import (
	"cmp"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/vmm"
)

// BenchmarkBooks measures the bookkeeping of a range of n chunks on a driver whose
// calls cost nothing.
func BenchmarkBooks(b *testing.B) {
	const chunk = 2 << 20
	for _, n := range []uint64{1, 100, 10_000} {
		d, err := vmm.OpenDriver(nulldriver.New(), 0)
		require.NoError(b, err)
		g, err := d.NewRange(vmm.RangeOptions{Max: (n + 1) * chunk, Chunk: chunk})
		require.NoError(b, err)
		require.NoError(b, g.Grow(n*chunk))
		run := func(name string, f func() error) {
			b.Run(fmt.Sprintf("%s/chunks=%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := f(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		one := make([]byte, 1)
		run("Append", func() error {
			if g.Len() == chunk {
				if err := g.SetLen(0); err != nil {
					return err
				}
			}
			return g.Append(one)
		})
		require.NoError(b, g.SetLen(n*chunk))
		run("ReadAt", func() error { _, err := g.ReadAt(one, int64(n*chunk/2)); return err })
		run("Hold", func() error {
			release, err := g.Hold(0, 1)
			if err == nil {
				release()
			}
			return err
		})
		run("Grow+Clip", func() error {
			if err := g.Grow(chunk); err != nil {
				return err
			}
			return g.Clip()
		})
		run("Stats", func() error { g.Stats(); return nil })
		require.NoError(b, g.Close())
		require.NoError(b, d.Close())
	}
}

// BenchmarkReadBesideStreams measures a read of one byte beside streams: it waits for the whole
// context, and after UsedBy for those named.
func BenchmarkReadBesideStreams(b *testing.B) {
	for _, n := range []int{0, 4000} {
		for _, used := range []bool{false, true} {
			d, err := vmm.OpenDriver(nulldriver.New(), 0)
			require.NoError(b, err)
			g, err := d.NewRange(vmm.RangeOptions{Max: 4 << 20})
			require.NoError(b, err)
			require.NoError(b, g.Append([]byte{1}))
			streams := make([]*vmm.Stream, n+1)
			for i := range streams {
				streams[i], err = d.NewStream()
				require.NoError(b, err)
			}
			if used {
				require.NoError(b, g.UsedBy(streams[0]))
			}
			b.Run(fmt.Sprintf("streams=%d/used=%v", n, used), func(b *testing.B) {
				one := make([]byte, 1)
				for b.Loop() {
					if _, err := g.ReadAt(one, 0); err != nil {
						b.Fatal(err)
					}
				}
			})
			for _, s := range streams {
				require.NoError(b, s.Close())
			}
			require.NoError(b, g.Close())
			require.NoError(b, d.Close())
		}
	}
}

// BenchmarkManyChunks measures the cost of a chunk where there are many: grown, put to
// sleep, and clipped into a full cache.
func BenchmarkManyChunks(b *testing.B) {
	const chunk, n = 2 << 20, 100_000
	d, err := vmm.OpenDriver(nulldriver.New(), 0)
	require.NoError(b, err)
	d.SetReleaseThreshold(n * chunk)
	ranges := [2]*vmm.Range{}
	for i := range ranges {
		ranges[i], err = d.NewRange(vmm.RangeOptions{Max: n * chunk, Chunk: chunk})
		require.NoError(b, err)
	}
	g, h := ranges[0], ranges[1]
	run := func(name string, prepare, f func() error) {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				require.NoError(b, prepare())
				b.StartTimer()
				require.NoError(b, f())
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/chunk")
		})
	}
	clip := func() error { return errors.Join(g.SetLen(0), g.Clip()) }
	all := func() error { return errors.Join(g.SetLen(0), g.Grow(n*chunk)) }
	run("grow", clip, func() error {
		for range n {
			if err := errors.Join(g.Grow(chunk), g.SetLen(g.Len()+chunk)); err != nil {
				return err
			}
		}
		return nil
	})
	run("sleep", func() error { return cmp.Or(vmm.Wake(g), all()) }, func() error { return vmm.Sleep(vmm.SleepDrop, g) })
	require.NoError(b, vmm.Wake(g))
	run("clip-into-full-cache", func() error {
		return errors.Join(h.Grow(n*chunk), all(), h.Clip())
	}, clip)
	require.NoError(b, g.Close())
	require.NoError(b, h.Close())
	require.NoError(b, d.Close())
}

// BenchmarkZero is the growth of a range by 64 MiB of cached memory, or of new memory, and
// what drops it again, with and without RangeOptions.Zero.
func BenchmarkZero(b *testing.B) {
	const size = 64 << 20
	for _, threshold := range []uint64{0, 1 << 30} {
		for _, zero := range []bool{false, true} {
			b.Run(fmt.Sprintf("threshold=%d/zero=%v", threshold, zero), func(b *testing.B) {
				d, err := vmm.Open("auto")
				require.NoError(b, err)
				d.SetReleaseThreshold(threshold)
				_, _, err = d.MemInfo() // makes the context, which filling needs
				require.NoError(b, err)
				g, err := d.NewRange(vmm.RangeOptions{Max: size, Zero: zero})
				require.NoError(b, err)
				for b.Loop() {
					require.NoError(b, g.Grow(size))
					b.StopTimer()
					require.NoError(b, g.Close())
					g, err = d.NewRange(vmm.RangeOptions{Max: size, Zero: zero})
					require.NoError(b, err)
					b.StartTimer()
				}
				require.NoError(b, g.Close())
				require.NoError(b, d.Close())
			})
		}
	}
}
