package stat

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/perf/benchmath"
)

// Interval is a confidence interval: of 100 of them, 95 or more contain the true median,
// also if a sample resembles the one before (93 or more, at a correlation of 0.6).
type Interval struct{ Low, High float64 }

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
// ones may resemble each other, and the interval is that for 99.8 %.
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
			k := min(places[0], len(rest))
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
	level := 0.95
	if n < enough*len(units) {
		level = 0.998
	}
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(units, &benchmath.DefaultThresholds), level)
	return s.Center, Interval{s.Lo, s.Hi}, nil
}

// Runs divides n samples into k runs of successive ones.
func Runs(n, k int) []int {
	list := make([]int, k)
	for i := range list {
		list[i] = (i+1)*n/k - i*n/k
	}
	return list
}
