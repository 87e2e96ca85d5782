// Package stat turns samples into medians, intervals and verdicts. All of it
// is deterministic: random numbers come from a seed.
package stat

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"golang.org/x/exp/stats"
)

// resamples is how often a bootstrap draws. With 1000, each end of a 95 %
// interval has 25 draws outside of it, so its error is a few per cent of the width.
const resamples = 1000

// Interval is a 95 % confidence interval.
type Interval struct{ Low, High float64 }

// Summary describes one set of samples.
type Summary struct {
	N                     int
	Median, MAD, Min, Max float64
	P5, P95               float64
	CV                    float64  // standard deviation over mean
	Interval              Interval // of the median
}

// Summarize describes samples, of which there must be at least one.
func Summarize(samples []float64, seed uint64) Summary {
	q := stats.Quantiles(samples, 0, 0.05, 0.5, 0.95, 1)
	s := Summary{N: len(samples), Min: q[0], P5: q[1], Median: q[2], P95: q[3], Max: q[4]}
	away := make([]float64, len(samples))
	for i, x := range samples {
		away[i] = math.Abs(x - s.Median)
	}
	s.MAD = stats.Median(away)
	if mean, sd := stats.MeanAndStdDev(samples); mean > 0 && len(samples) > 1 {
		s.CV = sd / mean
	}
	scratch := make([]float64, len(samples))
	s.Interval = bootstrap(len(samples), seed, func(draw []int) float64 { return medianOf(samples, draw, scratch) })
	return s
}

// Quantile is the q-quantile of samples, of which there must be at least one.
func Quantile(samples []float64, q float64) float64 { return stats.Quantiles(samples, q)[0] }

// MinSamples is the least number of samples for a 95 % interval. Of five samples,
// all lie on one side of the true median once in 16 times, which is over 5 %.
const MinSamples = 6

// Enough says whether n samples are enough for an interval.
func Enough(n int) bool { return n >= MinSamples }

// Ratio returns the median of b over the median of a, with its interval. Sample i
// of a and sample i of b were taken in the same block, and the bootstrap draws
// blocks: what slowed down both cancels. Samples without a partner are left out.
// Too few pairs are an error, and so is a sample of a that took no time.
func Ratio(a, b []float64, seed uint64) (ratio float64, interval Interval, err error) {
	n := min(len(a), len(b))
	if !Enough(n) {
		return 0, Interval{}, fmt.Errorf("%d pairs of samples, an interval needs %d", n, MinSamples)
	}
	a, b = a[:n], b[:n]
	if slices.Min(a) <= 0 {
		return 0, Interval{}, errors.New("a sample took no time at all") // every resampled median must be positive
	}
	scratch := make([]float64, n)
	interval = bootstrap(n, seed, func(draw []int) float64 { return medianOf(b, draw, scratch) / medianOf(a, draw, scratch) })
	return stats.Median(b) / stats.Median(a), interval, nil
}

// Drifts says whether the second half of the samples differs from the first half
// by more than margin.
func Drifts(samples []float64, margin float64, seed uint64) bool {
	half := len(samples) / 2
	_, interval, err := Ratio(samples[:half], samples[len(samples)-half:], seed)
	if err != nil {
		return false
	}
	v := Judge(interval, margin)
	return v == Slower || v == Faster
}

// bootstrap draws n indices with replacement, again and again, and returns the
// middle 95 % of the results of f.
func bootstrap(n int, seed uint64, f func(draw []int) float64) Interval {
	r := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	draw := make([]int, n)
	all := make([]float64, resamples)
	for i := range all {
		for j := range draw {
			draw[j] = r.IntN(n)
		}
		all[i] = f(draw)
	}
	q := stats.Quantiles(all, 0.025, 0.975)
	return Interval{Low: q[0], High: q[1]}
}

// medianOf returns the median of the drawn samples. It sorts them in scratch.
func medianOf(samples []float64, draw []int, scratch []float64) float64 {
	for i, j := range draw {
		scratch[i] = samples[j]
	}
	slices.Sort(scratch)
	n := len(scratch)
	return (scratch[(n-1)/2] + scratch[n/2]) / 2
}
