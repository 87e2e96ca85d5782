// Package versus compares several ways to do one thing, for our own tests: rounds in
// which each way runs once, intervals of the ratio of their medians, and tables of these.
package versus

import (
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/exp/stats"
)

const seed = 3

// Rounds runs n rounds, after one that does not count. In each round every way runs
// once, in a random order. Rounds returns how long each way took, round by round.
func Rounds(n int, ways ...func() time.Duration) [][]float64 {
	random := rand.New(rand.NewPCG(seed, uint64(n)))
	took := make([][]float64, len(ways))
	for round := range 1 + n {
		for _, i := range random.Perm(len(ways)) {
			d := ways[i]()
			if round > 0 {
				took[i] = append(took[i], float64(d))
			}
		}
	}
	return took
}

// Median is the median of samples, of which there must be at least one.
func Median(samples []float64) float64 { return stats.Quantiles(samples, 0.5)[0] }

// Interval is the 95 % confidence interval of the ratio of two medians, by a bootstrap
// over rounds: what slows a round down slows both of its samples. Both have the same
// number of samples, at least one.
func Interval(ours, theirs []float64) (low, high float64) {
	random := rand.New(rand.NewPCG(seed, 0))
	a, b := make([]float64, len(ours)), make([]float64, len(ours))
	ratios := make([]float64, 1000)
	for i := range ratios {
		for j := range a {
			k := random.IntN(len(ours))
			a[j], b[j] = ours[k], theirs[k]
		}
		slices.Sort(a)
		slices.Sort(b)
		ratios[i] = middle(a) / middle(b)
	}
	q := stats.Quantiles(ratios, 0.025, 0.975)
	return q[0], q[1]
}

// middle is the median of sorted samples.
func middle(s []float64) float64 { return (s[(len(s)-1)/2] + s[len(s)/2]) / 2 }
