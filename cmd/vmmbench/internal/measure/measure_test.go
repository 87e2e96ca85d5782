package measure

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// clock is a clock that only work moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

// work takes ns of the clock for each repetition, more or less.
func (c *clock) work(ns, spread float64, r *rand.Rand) Func {
	return func(_ context.Context, loops int) (Sample, error) {
		took := ns * (1 + spread*r.NormFloat64()) * float64(loops)
		c.at = c.at.Add(time.Duration(took))
		return Sample{NS: took}, nil
	}
}

func config(c *clock) Config {
	return Config{Samples: 20, MinTime: time.Millisecond, MaxTime: time.Minute, Now: c.now}
}

// From the clock to the verdict, with contenders that are slower by a known part.
func TestVerdictsOfAScriptedClock(t *testing.T) {
	const spread = 0.003
	seeds := testgate.Effort(40, 40, 1000)
	for _, c := range []struct {
		slowdown float64
		want     stat.Verdict
	}{{0, stat.Equal}, {0.01, stat.Equal}, {0.03, stat.Slower}, {0.10, stat.Slower}, {-0.10, stat.Faster}} {
		right := 0
		for seed := range uint64(seeds) {
			var clk clock
			r := rand.New(rand.NewPCG(seed, 2))
			cfg := config(&clk)
			cfg.Seed = seed
			out := Run(t.Context(), cfg, []Func{clk.work(2e6, spread, r), clk.work(2e6*(1+c.slowdown), spread, r)})
			e, err := stat.Ratio(out[0].Times(), out[1].Times())
			require.NoError(t, err)
			if stat.Judge(e, 0.02) == c.want {
				right++
			}
		}
		require.GreaterOrEqual(t, right, seeds*95/100, "slowdown %g", c.slowdown)
	}
}

// A machine that slows down during the run slows both sides, and blocks hide it.
func TestBlocksCancelDrift(t *testing.T) {
	var clk clock
	slow := 1.0
	work := func(_ context.Context, loops int) (Sample, error) {
		slow *= 1.002
		took := 2e6 * slow * float64(loops)
		clk.at = clk.at.Add(time.Duration(took))
		return Sample{NS: took}, nil
	}
	out := Run(t.Context(), config(&clk), []Func{work, work})
	e, err := stat.Ratio(out[0].Times(), out[1].Times())
	require.NoError(t, err)
	require.Equal(t, stat.Equal, stat.Judge(e, 0.02))
	require.True(t, stat.Drifts(out[0].Times(), 0.02))
}

func TestLoopsUntilASampleIsLongEnough(t *testing.T) {
	var clk clock
	r := rand.New(rand.NewPCG(1, 1))
	out := Run(t.Context(), config(&clk), []Func{clk.work(100, 0, r)})
	require.GreaterOrEqual(t, out[0].Loops, 10_000)
	require.Less(t, out[0].Loops, 20_000)
	require.InDelta(t, 100, out[0].Samples[0].NS, 1e-6, "samples are per repetition")

	cfg := config(&clk)
	cfg.MaxLoops = 64
	require.Equal(t, 64, Run(t.Context(), cfg, []Func{clk.work(100, 0, r)})[0].Loops)
}

// Each contender gets the repetitions that it needs, after a first run that is much slower
// than the others, and no sample is much longer than MinTime.
func TestCalibration(t *testing.T) {
	var clk clock
	var longest float64
	contender := func(first, then float64) Func {
		calls := 0
		return func(_ context.Context, loops int) (Sample, error) {
			ns := then * float64(loops)
			if calls++; calls == 1 {
				ns = first
			}
			longest = max(longest, ns)
			clk.at = clk.at.Add(time.Duration(ns))
			return Sample{NS: ns}, nil
		}
	}
	cfg := config(&clk)
	cfg.WarmTime = 5 * time.Millisecond
	out := Run(t.Context(), cfg, []Func{contender(3e6, 50), contender(100, 100), contender(1e9, 2e4), contender(2e7, 2e8)})
	for i, ns := range []float64{50, 100, 2e4, 2e8} {
		sample := float64(out[i].Loops) * ns
		require.GreaterOrEqual(t, sample, 1e6, "contender %d", i)
		require.LessOrEqual(t, sample, max(2e6, ns), "contender %d", i)
		require.Len(t, out[i].Samples, 20)
	}
	require.LessOrEqual(t, longest, 1e9, "and no run on the way is longer than its first one")
	require.Less(t, clk.at.Sub(time.Time{}), 7*time.Second)
}

// A stall of the process, as by another one that takes its CPU, sets no repetitions: samples that
// are too short have more of what timing itself takes, so that equal contenders seem to differ.
func TestStallsMakeNoVerdict(t *testing.T) {
	runs, wrong := testgate.Effort(500, 500, 5000), 0
	for seed := range uint64(runs) {
		var clk clock
		r := rand.New(rand.NewPCG(seed, 5))
		work := func(_ context.Context, loops int) (Sample, error) {
			ns := 500 + 1000*(1+0.003*r.NormFloat64())*float64(loops)
			if r.Float64() < 0.3 {
				ns += 4e6 * r.ExpFloat64()
			}
			clk.at = clk.at.Add(time.Duration(ns))
			return Sample{NS: ns}, nil
		}
		cfg := config(&clk)
		cfg.Samples, cfg.Seed = 30, seed
		out := Run(t.Context(), cfg, []Func{work, work})
		e, err := stat.Ratio(out[0].Times(), out[1].Times())
		require.NoError(t, err)
		if v := stat.Judge(e, 0.02); v == stat.Slower || v == stat.Faster {
			wrong++
		}
	}
	require.LessOrEqual(t, wrong, runs/100, "of %d comparisons of a contender with itself", runs)
}

// Memory is renewed between the blocks, in an order drawn anew, unless that takes long.
func TestRenew(t *testing.T) {
	var clk clock
	r := rand.New(rand.NewPCG(1, 1))
	broken := errors.New("broken")
	var orders [][]int
	cfg := config(&clk)
	cfg.Rounds = 10
	cfg.Renew = func(_ context.Context, order []int) []error {
		orders = append(orders, slices.Clone(order))
		errs := make([]error, len(order))
		if i := slices.Index(order, 2); len(orders) == 4 && i >= 0 {
			errs[i] = broken
		}
		return errs
	}
	out := Run(t.Context(), cfg, []Func{clk.work(2e6, 0, r), clk.work(2e6, 0, r), clk.work(2e6, 0, r)})
	require.Len(t, orders, 9)
	require.Len(t, out[0].Samples, 20)
	first := orders[0]
	require.True(t, slices.ContainsFunc(orders[:3], func(o []int) bool { return !slices.Equal(o, first) }))
	require.ErrorIs(t, out[2].Err, broken)
	require.Len(t, out[2].Samples, 8)
	require.Len(t, orders[4], 2, "what has failed is not renewed")

	orders = nil
	cfg.MaxTime = time.Second
	cfg.Renew = func(_ context.Context, order []int) []error {
		orders = append(orders, order)
		clk.at = clk.at.Add(300 * time.Millisecond)
		return make([]error, len(order))
	}
	out = Run(t.Context(), cfg, []Func{clk.work(2e6, 0, r)})
	require.Len(t, orders, 2, "until half of the time is over")
	require.Equal(t, []int{2, 1, 17}, out[0].Places)
}

func TestOrderIsDrawnFromTheSeed(t *testing.T) {
	order := func(seed uint64) (seen []int) {
		var clk clock
		note := func(i int) Func {
			return func(context.Context, int) (Sample, error) {
				seen = append(seen, i)
				return Sample{NS: 2e6}, nil
			}
		}
		cfg := config(&clk)
		cfg.Seed, cfg.MaxLoops = seed, 1
		Run(t.Context(), cfg, []Func{note(0), note(1), note(2)})
		return seen
	}
	require.Equal(t, order(1), order(1))
	require.NotEqual(t, order(1), order(2))
	count := map[int]int{}
	for _, i := range order(1) {
		count[i]++
	}
	require.Equal(t, map[int]int{0: 21, 1: 21, 2: 21}, count, "each once a block and once to warm up")
}

func TestStopReasons(t *testing.T) {
	var clk clock
	r := rand.New(rand.NewPCG(1, 1))
	cfg := config(&clk)
	require.Equal(t, Enough, Run(t.Context(), cfg, []Func{clk.work(2e6, 0, r)})[0].Stop)

	cfg.MaxTime = time.Nanosecond
	out := Run(t.Context(), cfg, []Func{clk.work(2e6, 0, r)})
	require.Equal(t, OutOfTime, out[0].Stop)
	require.Len(t, out[0].Samples, 1, "one block is always measured")

	cfg.MinBlocks = 6
	out = Run(t.Context(), cfg, []Func{clk.work(2e6, 0, r)})
	require.Equal(t, OutOfTime, out[0].Stop)
	require.Len(t, out[0].Samples, 6, "and as many as are needed")

	ctx, cancel := context.WithCancel(t.Context())
	cfg = config(&clk)
	cfg.MaxLoops = 1
	calls := 0
	out = Run(ctx, cfg, []Func{func(context.Context, int) (Sample, error) {
		if calls++; calls == 4 {
			cancel()
		}
		return Sample{NS: 2e6}, nil
	}})
	require.Equal(t, Interrupted, out[0].Stop)
	require.Len(t, out[0].Samples, 3, "three after the warm-up, and all are kept")
}

// A contender that breaks off within a sample has not failed, and another error
// at that moment is one.
func TestBrokenOffSampleIsNone(t *testing.T) {
	for _, at := range []int{1, 4} { // in the warm-up, in the third sample
		for _, broken := range []error{nil, errors.New("broken")} {
			var clk clock
			ctx, cancel := context.WithCancel(t.Context())
			calls, cfg := 0, config(&clk)
			cfg.MaxLoops = 1
			out := Run(ctx, cfg, []Func{func(ctx context.Context, _ int) (Sample, error) {
				if calls++; calls < at {
					return Sample{NS: 2e6}, nil
				}
				cancel()
				if broken != nil {
					return Sample{}, broken
				}
				return Sample{}, ctx.Err()
			}})
			require.Equal(t, at, calls, "nothing is begun afterwards")
			require.Len(t, out[0].Samples, max(0, at-2))
			if broken == nil {
				require.Equal(t, Interrupted, out[0].Stop)
				continue
			}
			require.Equal(t, Failed, out[0].Stop)
			require.ErrorIs(t, out[0].Err, broken)
		}
	}
}

func TestOneFailureLeavesTheOther(t *testing.T) {
	var clk clock
	r := rand.New(rand.NewPCG(1, 1))
	broken, calls := errors.New("broken"), 0
	cfg := config(&clk)
	cfg.MaxLoops = 1
	out := Run(t.Context(), cfg, []Func{
		func(context.Context, int) (Sample, error) {
			if calls++; calls > 3 {
				return Sample{}, broken
			}
			return Sample{NS: 2e6}, nil
		},
		clk.work(2e6, 0, r),
	})
	require.ErrorIs(t, out[0].Err, broken)
	require.Equal(t, Failed, out[0].Stop)
	require.Len(t, out[0].Samples, 2)
	require.NoError(t, out[1].Err)
	require.Len(t, out[1].Samples, 20)
}
