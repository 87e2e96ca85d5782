package stat

import (
	"math"
	"slices"
)

// Interval is a confidence interval: of 100 of them, 95 or more contain the true median.
type Interval struct{ Low, High float64 }

// MinSamples is the least number of samples for an interval. Of five, all lie on one side
// of the true median once in 16 times, which is over 5 %.
const MinSamples = 6

// Enough reports whether n samples are enough for an interval.
func Enough(n int) bool { return n >= MinSamples }

// medianInterval returns the median of samples, in the order in which they were taken,
// and its interval: two of the samples, so that nothing is assumed about how they are
// distributed. It needs MinSamples.
//
// That holds for samples that do not depend on each other. If successive ones resemble
// each other, n of them tell as much as fewer would. That happens when memory is placed
// well or badly for some blocks, or a clock wanders. Then the interval is wider.
func medianInterval(samples []float64) (median float64, of Interval, correlated bool) {
	median, of = orderInterval(samples)
	wider := widening(samples)
	return median, Interval{median - wider*(median-of.Low), median + wider*(of.High-median)}, wider > 1
}

// timeInterval is medianInterval for times, which are above 0, and so are the ends of
// their interval: it gets wider by the same power of their ratios to the median.
func timeInterval(samples []float64) (of Interval, correlated bool) {
	median, of := orderInterval(samples)
	wider := widening(samples)
	if wider > 1 && of.Low > 0 {
		of = Interval{median * math.Pow(of.Low/median, wider), median * math.Pow(of.High/median, wider)}
	}
	return of, wider > 1
}

// orderInterval returns the median, and the two samples that enclose it with 95 %
// probability if no sample depends on another.
func orderInterval(samples []float64) (median float64, of Interval) {
	sorted := slices.Sorted(slices.Values(samples))
	n := len(sorted)
	drop := outside(n)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2, Interval{sorted[drop], sorted[n-1-drop]}
}

// outside is how many of n sorted samples lie outside the interval on each side: as many
// as leave the true median inside with 95 % or more. How many samples lie below it is a
// binomial distribution.
func outside(n int) int {
	// Its terms are added as logarithms: the first is 0 as a float from 1075 samples on.
	k, term, tail := 0, float64(n)*math.Log(0.5), 0.0
	for ; ; k++ {
		tail += math.Exp(term) // at most k samples lie below the true median
		if tail > 0.025 {
			return max(0, k-1)
		}
		term += math.Log(float64(n-k) / float64(k+1))
	}
}

// widening is the factor by which autocorrelation widens an interval, 1 if there is none
// to be seen. For a process of first order, n samples tell as much as
// n * (1-r) / (1+r) independent ones, r being the correlation of successive ones.
func widening(samples []float64) float64 {
	n := float64(len(samples))
	if n < 10 { // less shows nothing
		return 1
	}
	mean := 0.0
	for _, x := range samples {
		mean += x / n
	}
	var all, successive float64
	for i, x := range samples {
		all += (x - mean) * (x - mean)
		if i > 0 {
			successive += (x - mean) * (samples[i-1] - mean)
		}
	}
	if all == 0 {
		return 1
	}
	r := successive / all
	r += (1 + 3*r) / n // the estimate from few samples is too low by that
	// Independent samples pass this about once in 30 times.
	if r < 2.2/math.Sqrt(n) {
		return 1
	}
	r = min(r, 0.95)
	return math.Sqrt((1 + r) / (1 - r))
}
