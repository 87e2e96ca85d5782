package memprof_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memprof"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestCost measures what the default rate adds, in turns with a rate of 0. It fails nothing.
func TestCost(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 6
	}
	d := vmmtest.Device(t)
	s, err := d.NewStream()
	require.NoError(t, err)
	p, err := pool.New(d, pool.Options{})
	require.NoError(t, err)
	g, err := d.NewRange(vmm.RangeOptions{Max: 64 << 20})
	require.NoError(t, err)
	require.NoError(t, g.Grow(64<<20))
	pair := func(size uint64) func() error {
		return func() error {
			b, err := p.Alloc(s, size)
			if err != nil {
				return err
			}
			return p.Free(s, b)
		}
	}
	one := make([]byte, 8)
	const batch = 10000
	for _, c := range []struct {
		name string
		f    func() error
	}{
		{"pool pair of 4 KiB", pair(4 << 10)},
		{"pool pair of 1 MiB", pair(1 << 20)},
		{"Append that fits", func() error {
			if g.Len() > 63<<20 {
				if err := g.SetLen(0); err != nil {
					return err
				}
			}
			return g.Append(one)
		}},
	} {
		at := func(rate int64) func() time.Duration {
			return func() time.Duration {
				defer memprof.SetRate(memprof.SetRate(rate))
				start := time.Now()
				for range batch {
					if err := c.f(); err != nil {
						t.Fatal(err)
					}
				}
				return time.Since(start)
			}
		}
		took := versus.Rounds(rounds, at(memprof.DefaultRate), at(0))
		low, high := versus.Interval(took[0], took[1])
		t.Logf("%s: %.1f ns with the default rate, %.1f without, ratio %.3f to %.3f, at most 1.05: %s", c.name,
			versus.Median(took[0])/batch, versus.Median(took[1])/batch, low, high, versus.Verdict(high <= 1.05))
	}
	require.NoError(t, p.Close())
	require.NoError(t, g.Close())
	require.NoError(t, s.Close())
}
