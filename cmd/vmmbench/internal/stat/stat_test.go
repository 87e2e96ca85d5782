package stat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

func TestSummarize(t *testing.T) {
	s := Summarize([]float64{5, 1, 4, 2, 3, 9})
	require.Equal(t, 6, s.N)
	require.Equal(t, 3.5, s.Median)
	require.Equal(t, 1.5, s.MAD)
	require.Equal(t, 1.0, s.Min)
	require.Equal(t, 9.0, s.Max)
	require.Nil(t, s.Interval, "six samples have no interval of 95 %")
	require.Zero(t, Summarize([]float64{7}).CV)

	require.Equal(t, Interval{1, 10, Wide}, *Summarize([]float64{5, 1, 4, 2, 3, 9, 8, 7, 10, 6}).Interval)
	require.Nil(t, Summarize(make([]float64, MinSamples-1)).Interval)
}

// Samples on one placement of the memory count once.
func TestPlaces(t *testing.T) {
	var samples []float64
	var places []int
	for i := range 10 {
		for _, x := range []float64{0, 0.1, 50} {
			samples = append(samples, float64(i)+x)
		}
		places = append(places, 3)
	}
	s := Summarize(samples, places...)
	require.InDelta(t, 1.1, s.Interval.Low, 1e-12, "the second of ten medians")
	require.InDelta(t, 8.1, s.Interval.High, 1e-12, "the last but one")
	require.Equal(t, s.Interval, Summarize(samples).Interval, "without placements, ten runs of samples are taken")

	require.Nil(t, Summarize(samples, 10, 10, 10).Interval)
	_, err := Ratio(samples[1:], samples[1:], 9, 10, 10)
	require.ErrorIs(t, err, ErrTooFew)
	require.ErrorContains(t, err, "memory lay in 3 places, an interval needs 10")

	s = Summarize(samples[:12], 2, 2, 1, 1, 1, 0, 1, 1, 1, 1, 1)
	require.Equal(t, Interval{0.05, 53, Wide}, *s.Interval, "few samples on a place: the widest interval there is")
}

func TestRatio(t *testing.T) {
	a := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	e, err := Ratio(a, []float64{2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 100})
	require.NoError(t, err)
	require.InDelta(t, 2, e.Ratio, 1e-12)
	require.InDelta(t, 2, e.Interval.Low, 1e-12, "pairs are kept together, so what changes both alike cancels")
	require.InDelta(t, 2, e.Interval.High, 1e-12)

	_, err = Ratio(a[:9], a)
	require.ErrorIs(t, err, ErrTooFew)
	_, err = Ratio([]float64{0, 1, 1, 1, 1, 1, 1, 1, 1, 1}, a)
	require.ErrorContains(t, err, "no time at all")
}

func TestUnpaired(t *testing.T) {
	a, b := slices.Repeat([]float64{1}, 10), slices.Repeat([]float64{2}, 11)
	e, err := Unpaired(a, b, nil, nil)
	require.NoError(t, err)
	require.InDelta(t, 2, e.Ratio, 1e-12)
	require.InDelta(t, 2, e.Interval.Low, 1e-12)
	require.InDelta(t, 2, e.Interval.High, 1e-12)

	wide, err := Unpaired([]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, b, nil, nil)
	require.NoError(t, err)
	require.Less(t, wide.Interval.Low, wide.Ratio)
	require.Greater(t, wide.Interval.High, wide.Ratio)

	_, err = Unpaired(a[:9], b, nil, nil)
	require.ErrorIs(t, err, ErrTooFew)
	_, err = Unpaired(a, b, nil, []int{5, 6})
	require.ErrorIs(t, err, ErrTooFew)
	_, err = Unpaired(a, append(b, 0), nil, nil)
	require.ErrorContains(t, err, "no time at all")
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      Verdict
	}{
		{0.99, 1.01, Equal},
		{0.98, 1.02, Equal},
		{1.03, 1.05, Slower},
		{0.90, 0.97, Faster},
		{0.97, 1.00, TooNoisy},
		{1.01, 1.05, TooNoisy},
		{0.5, 2, TooNoisy},
		{1.0195, 1.0205, AtMargin},
		{1, 1.04, AtMargin},
	} {
		e := Estimate{Ratio: math.Sqrt(c.low * c.high), Interval: Interval{Low: c.low, High: c.high}}
		require.Equal(t, c.want, Judge(e, 0.02), "%v", c)
	}
}

// simulation makes the samples of two contenders, of which b takes 1 + slow times as long.
// spread is about how far apart samples are, as a share.
type simulation func(r *rand.Rand, n int, spread, slow float64) (a, b []float64)

// wandering samples resemble the one before: an autoregressive process with rho.
func wandering(rho float64) simulation {
	return func(r *rand.Rand, n int, spread, slow float64) (a, b []float64) {
		x, y := r.NormFloat64(), r.NormFloat64()
		for range n {
			a = append(a, math.Exp(spread*x))
			b = append(b, (1+slow)*math.Exp(spread*y))
			x, y = rho*x+math.Sqrt(1-rho*rho)*r.NormFloat64(), rho*y+math.Sqrt(1-rho*rho)*r.NormFloat64()
		}
		return a, b
	}
}

// drifting samples are independent, on a machine that gets faster and slower for both.
func drifting(r *rand.Rand, n int, spread, slow float64) (a, b []float64) {
	a, b = wandering(0)(r, n, spread, slow)
	at := 1.0
	for i := range a {
		at *= math.Exp(spread * r.NormFloat64())
		a[i], b[i] = at*a[i], at*b[i]
	}
	return a, b
}

// placed samples depend on where the memory lies, which is allocated ten times.
func placed(r *rand.Rand, n int, spread, slow float64) (a, b []float64) {
	for _, k := range Runs(n, 10) {
		x, y := spread*r.NormFloat64(), spread*r.NormFloat64()
		for range k {
			a = append(a, math.Exp(x+0.3*spread*r.NormFloat64()))
			b = append(b, (1+slow)*math.Exp(y+0.3*spread*r.NormFloat64()))
		}
	}
	return a, b
}

// stalled samples take much longer three times of ten.
func stalled(r *rand.Rand, n int, spread, slow float64) (a, b []float64) {
	a, b = wandering(0)(r, n, spread, slow)
	for i := range n {
		for _, x := range []*float64{&a[i], &b[i]} {
			if r.Float64() < 0.3 {
				*x += 4 * r.ExpFloat64()
			}
		}
	}
	return a, b
}

// skewed samples are never faster than 1, and now and then much slower.
func skewed(r *rand.Rand, n int, spread, slow float64) (a, b []float64) {
	for range n {
		a = append(a, 1+spread*r.ExpFloat64()*r.ExpFloat64())
		b = append(b, (1+slow)*(1+spread*r.ExpFloat64()*r.ExpFloat64()))
	}
	return a, b
}

// tally is the shares of the verdicts, and of the intervals that had the truth.
type tally struct{ equal, slower, faster, covered float64 }

// simulate compares contenders many times, by samples that were taken in the same blocks, or in
// two runs.
func simulate(t *testing.T, s simulation, n int, places []int, spread, slow float64, paired bool) (c tally) {
	t.Helper()
	seeds := testgate.Effort(1000, 1000, 20_000)
	one := 1 / float64(seeds)
	for seed := range uint64(seeds) {
		a, b := s(rand.New(rand.NewPCG(seed, 1)), n, spread, slow)
		e, err := Ratio(a, b, places...)
		if !paired {
			e, err = Unpaired(a, b, places, places)
		}
		require.NoError(t, err)
		switch Judge(e, 0.02) {
		case Equal:
			c.equal += one
		case Slower:
			c.slower += one
		case Faster:
			c.faster += one
		}
		if e.Interval.Low <= 1+slow && 1+slow <= e.Interval.High {
			c.covered += one
		}
	}
	return c
}

// Every interval that is printed as one of 95 % is one, and hardly any verdict is wrong,
// whatever the samples have in common: with stalls, with samples that resemble the one
// before, and with memory that is placed well or badly.
func TestIntervalsAndVerdicts(t *testing.T) {
	counts := []int{10, 12, 15, 20, 30, 45, 100}
	for name, c := range map[string]struct {
		s      simulation
		places bool
	}{
		"independent": {wandering(0), false}, "drifting": {drifting, false}, "skewed": {skewed, false}, "stalled": {stalled, false},
		"AR 0.6": {wandering(0.6), false}, "AR 0.6, with places": {wandering(0.6), true}, "placed": {placed, true}, "stalled, with places": {stalled, true},
	} {
		for _, n := range testgate.Effort([]int{10, 15}, counts, counts) {
			var places []int
			if c.places {
				places = Runs(n, 10)
			}
			for _, spread := range []float64{0.01, 0.03} {
				for _, paired := range []bool{true, false} {
					what := fmt.Sprintf("%s, %d samples, spread %g, paired %t", name, n, spread, paired)
					same := simulate(t, c.s, n, places, spread, 0, paired)
					require.GreaterOrEqual(t, same.covered, 0.93, what)
					require.LessOrEqual(t, same.slower+same.faster, 0.01, what)
					slower := simulate(t, c.s, n, places, spread, 0.05, paired)
					require.LessOrEqual(t, slower.equal+slower.faster, 0.01, what)
				}
			}
		}
	}
}

// TestWithoutPlaces is the control: placements that are not told miss the truth, and make
// verdicts that are wrong.
func TestWithoutPlaces(t *testing.T) {
	c := simulate(t, func(r *rand.Rand, n int, spread, slow float64) (a, b []float64) {
		a, b = placed(r, n, spread, slow)
		r.Shuffle(n, func(i, j int) { a[i], a[j], b[i], b[j] = a[j], a[i], b[j], b[i] })
		return a, b
	}, 100, nil, 0.03, 0, true)
	require.Less(t, c.covered, 0.8)
	require.Greater(t, c.slower+c.faster, 0.02)
}

// With a spread of 1 % and 30 samples the verdict is right, and firm.
func TestVerdicts(t *testing.T) {
	for _, paired := range []bool{true, false} {
		require.GreaterOrEqual(t, simulate(t, wandering(0), 30, nil, 0.01, 0, paired).equal, 0.9)
		require.GreaterOrEqual(t, simulate(t, wandering(0), 30, nil, 0.01, 0.05, paired).slower, 0.9)
		require.GreaterOrEqual(t, simulate(t, wandering(0), 30, nil, 0.01, -0.05, paired).faster, 0.9)
	}
	require.GreaterOrEqual(t, simulate(t, drifting, 30, nil, 0.01, 0, true).equal, 0.9)
}

func TestDrifts(t *testing.T) {
	flat, rising := make([]float64, 20), make([]float64, 20)
	for i := range flat {
		flat[i] = 100 + float64(i%3)*0.1
		rising[i] = 100 + float64(i)*2
	}
	require.False(t, Drifts(flat, 0.02))
	require.True(t, Drifts(rising, 0.02))
	require.False(t, Drifts([]float64{1, 2, 3}, 0.02), "three samples show no drift")
}

// A percentile needs as many samples as would have one beyond it.
func TestPercentile(t *testing.T) {
	samples := make([]float64, 100)
	for i := range samples {
		samples[i] = float64(100 - i)
	}
	require.Nil(t, Percentile(samples[:99], 0.99))
	require.InDelta(t, Quantile(samples, 0.99), *Percentile(samples, 0.99), 0)
	require.InDelta(t, 99, *Percentile(samples, 0.99), 1)
	require.Nil(t, Percentile(samples[:19], 0.95))
	require.NotNil(t, Percentile(samples[:20], 0.95))
	require.Nil(t, Percentile(nil, 0.5))
}
