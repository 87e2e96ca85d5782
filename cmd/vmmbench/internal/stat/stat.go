// Package stat turns samples into medians, intervals and verdicts. None of it draws
// random numbers.
package stat

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"golang.org/x/exp/stats"
)

// Summary describes one set of samples.
type Summary struct {
	N                     int
	Median, MAD, Min, Max float64
	P5, P95               float64
	CV                    float64   // standard deviation over mean
	Interval              *Interval // of the median; nil with fewer than MinSamples
	Correlated            bool      // successive samples resemble each other: the interval is wider for that
}

// Summarize describes samples in the order in which they were taken. There must be at
// least one.
func Summarize(samples []float64) Summary {
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
	if Enough(len(samples)) {
		var of Interval
		of, s.Correlated = timeInterval(samples)
		s.Interval = &of
	}
	return s
}

// Quantile is the q-quantile of samples, of which there must be at least one.
func Quantile(samples []float64, q float64) float64 { return stats.Quantiles(samples, q)[0] }

// Estimate is a ratio of times and what is known about it.
type Estimate struct {
	N          int // pairs of samples
	Ratio      float64
	Interval   Interval
	Correlated bool // as in Summary
}

// Ratio estimates how many times as long as a b takes: the median of the ratios of
// sample i of b to sample i of a. Both were taken in the same block, so what slowed down
// both cancels. Samples without a partner are left out. Fewer than MinSamples pairs are
// ErrTooFew; a sample that took no time is another error.
func Ratio(a, b []float64) (Estimate, error) {
	n := min(len(a), len(b))
	if !Enough(n) {
		return Estimate{}, fmt.Errorf("%w: %d pairs, an interval needs %d", ErrTooFew, n, MinSamples)
	}
	// The logarithm makes twice as long and half as long the same distance.
	logs := make([]float64, n)
	for i := range logs {
		if a[i] <= 0 || b[i] <= 0 {
			return Estimate{}, errNoTime
		}
		logs[i] = math.Log(b[i] / a[i])
	}
	m, of, correlated := medianInterval(logs)
	return Estimate{N: n, Ratio: math.Exp(m), Interval: Interval{math.Exp(of.Low), math.Exp(of.High)}, Correlated: correlated}, nil
}

// ErrTooFew says that there are not enough samples for an interval.
var ErrTooFew = errors.New("too few samples")

var errNoTime = errors.New("a sample took no time at all")

// Drifts reports whether the second half of the samples differs from the first half by more
// than margin.
func Drifts(samples []float64, margin float64) bool {
	half := len(samples) / 2
	first, second := slices.Clone(samples[:half]), slices.Clone(samples[len(samples)-half:])
	e, err := Ratio(first, second)
	if err != nil {
		return false
	}
	v := Judge(e, margin)
	return v == Slower || v == Faster
}
