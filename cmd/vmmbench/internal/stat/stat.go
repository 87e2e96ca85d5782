// Package stat turns samples into medians, intervals and verdicts. None of it draws
// random numbers.
package stat

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"golang.org/x/exp/stats"
	"golang.org/x/perf/benchmath"
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
		s.Interval = &Interval{min(of.Low, s.Median), max(of.High, s.Median), of.Level}
	}
	return s
}

// Quantile is the q-quantile of samples, of which there must be at least one.
func Quantile(samples []float64, q float64) float64 { return stats.Quantiles(samples, q)[0] }

// Percentile is the q-quantile, nil for fewer than 1/(1-q) samples.
func Percentile(samples []float64, q float64) *float64 {
	if float64(len(samples))*(1-q) < 1-1e-9 {
		return nil
	}
	x := Quantile(samples, q)
	return &x
}

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
	logA, errA := logs(a[:n])
	list, errB := logs(b[:n])
	if err := cmp.Or(errA, errB); err != nil {
		return Estimate{}, err
	}
	for i := range list {
		list[i] -= logA[i]
	}
	m, of, err := medianInterval(list, places)
	return Estimate{math.Exp(m), Interval{math.Exp(of.Low), math.Exp(of.High), of.Level}}, err
}

// Unpaired is Ratio for samples that were not taken in the same blocks: those of two runs,
// for one. It is the ratio of the medians. placesA and placesB are those of Summarize.
//
// Its interval is made of those of the two medians, in logarithms: it reaches as far down
// as the distances of b's lower and a's upper bound, added as squares, and as far up as the
// other two (Zou and Donner, "Construction of confidence limits about effect measures: a
// general approach", 2008). What differed between the runs, as the clocks, it cannot know.
func Unpaired(a, b []float64, placesA, placesB []int) (Estimate, error) {
	logA, errA := logs(a)
	logB, errB := logs(b)
	if err := cmp.Or(errA, errB); err != nil {
		return Estimate{}, err
	}
	ma, ofA, errA := medianInterval(logA, placesA)
	mb, ofB, errB := medianInterval(logB, placesB)
	down := math.Hypot(mb-ofB.Low, ofA.High-ma)
	up := math.Hypot(ofB.High-mb, ma-ofA.Low)
	m := mb - ma
	return Estimate{math.Exp(m), Interval{math.Exp(m - down), math.Exp(m + up), min(ofA.Level, ofB.Level)}}, cmp.Or(errA, errB)
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

// Interval is a confidence interval: of 100 of them, 95 or more contain the true median,
// also if a sample resembles the one before (93 or more, at a correlation of 0.6). Level is the
// nominal confidence: Usual, or Wide.
type Interval struct{ Low, High, Level float64 }

// Levels of an interval. Of few samples it is not known whether successive ones resemble each other,
// so their interval is wider.
const (
	Usual = 0.95
	Wide  = 0.998
)

// MinSamples is the least number of samples, or of places if memory is kept over several
// samples, for an interval.
const MinSamples = 10

// ErrTooFew says that there are not enough samples or places for an interval.
var ErrTooFew = errors.New("too few samples")

// medianInterval returns the median of samples, in the order in which they were taken, and
// its interval, whose ends are order statistics: nothing is assumed about how samples are
// distributed.
//
// It does not count on samples to be independent. What was measured on one placement of the
// memory has that in common, so that a placement counts once, with the median of its
// samples. Without placements, 30 samples and more are MinSamples runs of successive ones,
// and count as those do. Where that leaves fewer than three samples to each, successive
// ones may resemble each other, and the interval is Wide.
func medianInterval(samples []float64, places []int) (median float64, of Interval, err error) {
	const enough = 3
	n := len(samples)
	if len(places) == 0 && n >= enough*MinSamples {
		places = Runs(n, MinSamples)
	}
	units := slices.Clone(samples)
	if len(places) > 0 {
		units = nil
		for rest := samples; len(places) > 0; places = places[1:] {
			k := min(max(places[0], 0), len(rest))
			if k > 0 {
				units = append(units, Quantile(rest[:k], 0.5))
			}
			rest = rest[k:]
		}
		if len(units) < MinSamples {
			return 0, of, fmt.Errorf("%w: memory lay in %d places, an interval needs %d: give it more time", ErrTooFew, len(units), MinSamples)
		}
	}
	if len(units) < MinSamples {
		return 0, of, fmt.Errorf("%w: %d, an interval needs %d", ErrTooFew, n, MinSamples)
	}
	level := Usual
	if n < enough*len(units) {
		level = Wide
	}
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(units, &benchmath.DefaultThresholds), level)
	return s.Center, Interval{s.Lo, s.Hi, level}, nil
}

// Runs divides n samples into k runs of successive ones.
func Runs(n, k int) []int {
	list := make([]int, k)
	for i := range list {
		list[i] = (i+1)*n/k - i*n/k
	}
	return list
}

// Verdict says how the time of b compares with that of a.
type Verdict string

// The values of Verdict. The first three are results: the whole interval lies inside the
// margin, or outside of it. The others say why there is none.
const (
	Equal       Verdict = "equal"
	Slower      Verdict = "slower"
	Faster      Verdict = "faster"
	Waived      Verdict = "waived"        // this machine cannot do one of the two
	NotMeasured Verdict = "not measured"  // there is no ratio: the reason stands beside it
	TooFew      Verdict = "too few"       // samples or places, for an interval
	TooNoisy    Verdict = "too noisy"     // the interval is too wide
	OneRun      Verdict = "one run"       // of each differs, as two runs of one program may
	AtMargin    Verdict = "at the margin" // the difference is about as large as the margin, so more samples would not help
)

// Verdicts returns all of them.
func Verdicts() []Verdict {
	return []Verdict{Equal, Slower, Faster, Waived, NotMeasured, TooFew, TooNoisy, OneRun, AtMargin}
}

// Firm reports whether a verdict is a result.
func (v Verdict) Firm() bool { return v == Equal || v == Slower || v == Faster }

// Judge compares by an equivalence test. margin says how far from 1 the ratio may be and
// still count as equal: 0.02 for 2 %. The defaults are in flags.go of vmmbench.
func Judge(e Estimate, margin float64) Verdict {
	switch of := e.Interval; {
	case of.Low >= 1-margin && of.High <= 1+margin:
		return Equal
	case of.Low > 1+margin:
		return Slower
	case of.High < 1-margin:
		return Faster
	case nearMargin(e, margin):
		return AtMargin
	}
	return TooNoisy
}

// nearMargin reports whether the ratio is as far from 1 as the margin, within a tenth of it,
// and the interval is narrow enough to know that.
func nearMargin(e Estimate, margin float64) bool {
	m, border := math.Log(e.Ratio), math.Log1p(margin)
	width := max(math.Log(e.Interval.High)-m, m-math.Log(e.Interval.Low))
	return width <= border && math.Abs(math.Abs(m)-border) <= border/10
}
