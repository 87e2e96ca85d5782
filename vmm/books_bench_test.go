package vmm_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/nulldriver"
	"github.com/cuvmm/cuvmm/vmm"
)

// BenchmarkBooks is what the books of a range of n chunks cost, where the
// driver's calls cost nothing.
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
			release, err := g.Hold(1)
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
