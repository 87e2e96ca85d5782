// Package stat turns samples into medians, intervals and verdicts. None of it draws
// random numbers.
package stat

import (
	"errors"
	"math"

	"golang.org/x/exp/stats"
)

// Summary describes one set of samples.
type Summary struct {
	N                     int
	Median, MAD, Min, Max float64
	P5, P95               float64
	CV                    float64   // standard deviation over mean
	Interval              *Interval // of the median; nil if there are too few samples or places
}

// Summarize describes samples in the order in which they were taken. There must be at
// least one. places are how many of them were taken on each placement of the memory, one
// after the other; none are given if that does not matter.
func Summarize(samples []float64, places ...int) Summary {
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
	if _, of, err := medianInterval(samples, places); err == nil {
		s.Interval = &Interval{min(of.Low, s.Median), max(of.High, s.Median)}
	}
	return s
}

// Quantile is the q-quantile of samples, of which there must be at least one.
func Quantile(samples []float64, q float64) float64 { return stats.Quantiles(samples, q)[0] }

// Estimate is a ratio of times and what is known about it.
type Estimate struct {
	Ratio    float64
	Interval Interval
}

// Ratio estimates how many times as long as a b takes: the median of the ratios of
// sample i of b to sample i of a. Both were taken in the same block, so what slowed down
// both cancels. Samples without a partner are left out. places are those of Summarize. Too
// few pairs or places are ErrTooFew; a sample that took no time is another error.
func Ratio(a, b []float64, places ...int) (Estimate, error) {
	n := min(len(a), len(b))
	logA, err := logs(a[:n])
	if err != nil {
		return Estimate{}, err
	}
	list, err := logs(b[:n])
	if err != nil {
		return Estimate{}, err
	}
	for i := range list {
		list[i] -= logA[i]
	}
	m, of, err := medianInterval(list, places)
	return Estimate{math.Exp(m), Interval{math.Exp(of.Low), math.Exp(of.High)}}, err
}

// Unpaired is Ratio for samples that were not taken in the same blocks: those of two runs,
// for one. It is the ratio of the medians. placesA and placesB are those of Summarize.
//
// Its interval is made of those of the two medians, in logarithms: it reaches as far down
// as the distances of b's lower and a's upper bound, added as squares, and as far up as the
// other two (Zou and Donner, "Construction of confidence limits about effect measures: a
// general approach", 2008). What differed between the runs, as the clocks, it cannot know.
func Unpaired(a, b []float64, placesA, placesB []int) (Estimate, error) {
	logA, err := logs(a)
	if err != nil {
		return Estimate{}, err
	}
	logB, err := logs(b)
	if err != nil {
		return Estimate{}, err
	}
	ma, ofA, errA := medianInterval(logA, placesA)
	mb, ofB, errB := medianInterval(logB, placesB)
	down := math.Hypot(mb-ofB.Low, ofA.High-ma)
	up := math.Hypot(ofB.High-mb, ma-ofA.Low)
	m := mb - ma
	return Estimate{math.Exp(m), Interval{math.Exp(m - down), math.Exp(m + up)}}, errors.Join(errA, errB)
}

// logs returns the logarithms of times. They make twice as long and half as long the same
// distance.
func logs(samples []float64) ([]float64, error) {
	list := make([]float64, len(samples))
	for i, x := range samples {
		if !(x > 0) {
			return nil, errors.New("a sample took no time at all")
		}
		list[i] = math.Log(x)
	}
	return list, nil
}

// Drifts reports whether the second half of the samples differs from the first half by more
// than margin.
func Drifts(samples []float64, margin float64) bool {
	half := len(samples) / 2
	e, err := Ratio(samples[:half], samples[len(samples)-half:])
	return err == nil && Judge(e, margin).Firm() && Judge(e, margin) != Equal
}
