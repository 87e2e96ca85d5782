package stat

import (
	"fmt"
	"math"
)

// Unpaired estimates how many times as long as a b takes, if the two were not measured in
// the same blocks: in two runs, for one. It is the ratio of the medians.
//
// Its interval is made of those of the two medians, which are order statistics, in
// logarithms: it reaches as far down as the distances of b's lower and a's upper bound,
// added as squares, and as far up as the other two (Zou and Donner, "Construction of
// confidence limits about effect measures: a general approach", 2008). In simulations it
// contains the true ratio in 97 of 100 cases or more. It assumes no more about the
// samples than the two intervals do, and is wider if successive ones resemble each other.
// What differed between the runs, as the clocks or the place of memory, it cannot know.
//
// Less than MinSamples on a side are ErrTooFew; a sample that took no time is another
// error.
func Unpaired(a, b []float64) (Estimate, error) {
	n := min(len(a), len(b))
	if !Enough(n) {
		return Estimate{}, fmt.Errorf("%w: %d on one side, an interval needs %d", ErrTooFew, n, MinSamples)
	}
	logA, err := logs(a)
	if err != nil {
		return Estimate{}, err
	}
	logB, err := logs(b)
	if err != nil {
		return Estimate{}, err
	}
	ma, ofA, correlatedA := medianInterval(logA)
	mb, ofB, correlatedB := medianInterval(logB)
	down := math.Hypot(mb-ofB.Low, ofA.High-ma)
	up := math.Hypot(ofB.High-mb, ma-ofA.Low)
	m := mb - ma
	return Estimate{
		N: n, Ratio: math.Exp(m), Interval: Interval{math.Exp(m - down), math.Exp(m + up)},
		Correlated: correlatedA || correlatedB,
	}, nil
}

// logs returns the logarithms of times.
func logs(samples []float64) ([]float64, error) {
	list := make([]float64, len(samples))
	for i, x := range samples {
		if !(x > 0) {
			return nil, errNoTime
		}
		list[i] = math.Log(x)
	}
	return list, nil
}
