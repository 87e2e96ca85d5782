package memtrace_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestCost measures what a history adds, in turns with none. It fails nothing.
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
	g, err := d.NewRange(vmm.RangeOptions{Max: 64 << 20, Chunk: 32 << 20})
	require.NoError(t, err)
	pair := func() error {
		b, err := p.Alloc(s, 4<<10)
		if err != nil {
			return err
		}
		return p.Free(s, b)
	}
	growAndClip := func() error {
		if err := g.Grow(32 << 20); err != nil {
			return err
		}
		return g.Clip()
	}
	one := make([]byte, 8)
	require.NoError(t, g.Grow(4<<20))
	fits := func() error {
		if g.Len() > 1<<20 {
			if err := g.SetLen(0); err != nil {
				return err
			}
		}
		return g.Append(one)
	}
	for _, c := range []struct {
		name  string
		batch int
		f     func() error
		with  vmm.HistoryOptions
		most  float64
	}{
		{"Append that fits, of ranges", 10_000, fits, vmm.HistoryOptions{Events: 10_000}, 1.25},
		{"pool pair, of ranges", 10_000, pair, vmm.HistoryOptions{Events: 10_000}, 1.25},
		{"pool pair, with blocks and no stacks", 10_000, pair, vmm.HistoryOptions{Events: 10_000, Blocks: true, NoStacks: true}, 3},
		{"pool pair, with blocks and stacks", 10_000, pair, vmm.HistoryOptions{Events: 10_000, Blocks: true}, 0},
		{"grow and clip, six events with stacks", 100, growAndClip, vmm.HistoryOptions{Events: 10_000}, 0},
	} {
		with := func(o vmm.HistoryOptions) func() time.Duration {
			return func() time.Duration {
				d.SetHistory(o)
				defer d.SetHistory(vmm.HistoryOptions{})
				start := time.Now()
				for range c.batch {
					if err := c.f(); err != nil {
						t.Fatal(err)
					}
				}
				return time.Since(start)
			}
		}
		took := versus.Rounds(rounds, with(c.with), with(vmm.HistoryOptions{}))
		low, high := versus.Interval(took[0], took[1])
		goal := "no goal"
		if c.most > 0 {
			goal = fmt.Sprintf("at most %v: %s", c.most, versus.Verdict(high <= c.most))
		}
		t.Logf("%s: %.1f ns with, %.1f without, ratio %.3f to %.3f: %s", c.name,
			versus.Median(took[0])/float64(c.batch), versus.Median(took[1])/float64(c.batch), low, high, goal)
	}
	require.NoError(t, p.Close())
	require.NoError(t, g.Close())
	require.NoError(t, s.Close())
}
