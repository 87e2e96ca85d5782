package stat

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnpaired(t *testing.T) {
	a, b := []float64{1, 1, 1, 1, 1, 1}, []float64{2, 2, 2, 2, 2, 2, 2}
	e, err := Unpaired(a, b)
	require.NoError(t, err)
	require.Equal(t, 6, e.N)
	require.InDelta(t, 2, e.Ratio, 1e-12)
	require.InDelta(t, 2, e.Interval.Low, 1e-12)
	require.InDelta(t, 2, e.Interval.High, 1e-12)

	wide, err := Unpaired([]float64{1, 2, 3, 4, 5, 6}, b)
	require.NoError(t, err)
	require.Less(t, wide.Interval.Low, wide.Ratio)
	require.Greater(t, wide.Interval.High, wide.Ratio)

	_, err = Unpaired(a[:5], b)
	require.ErrorIs(t, err, ErrTooFew)
	_, err = Unpaired(a, []float64{1, 1, 1, 1, 1, 0})
	require.ErrorContains(t, err, "no time at all")
}

// The interval has the true ratio in 93 % of the seeds or more, and it is not so wide
// that nothing is found.
func TestUnpairedCoverage(t *testing.T) {
	for name, s := range map[string]simulation{"independent": independent, "skewed": skewed} {
		for _, n := range []int{6, 7, 10, 15, 30} {
			for _, slow := range []float64{0, 0.05} {
				covered := 0
				for seed := range uint64(1000) {
					a, _ := s(rand.New(rand.NewPCG(seed, 2)), n, 0)
					_, b := s(rand.New(rand.NewPCG(seed, 3)), n, slow)
					e, err := Unpaired(a, b)
					require.NoError(t, err)
					if e.Interval.Low <= 1+slow && 1+slow <= e.Interval.High {
						covered++
					}
				}
				require.GreaterOrEqual(t, covered, 930, "%s, %d samples, %g slower", name, n, slow)
			}
		}
	}
	found, equal := 0, 0
	for seed := range uint64(1000) {
		a, same := independent(rand.New(rand.NewPCG(seed, 2)), 30, 0)
		_, b := independent(rand.New(rand.NewPCG(seed, 3)), 30, 0.05)
		e, err := Unpaired(a, b)
		require.NoError(t, err)
		if Judge(e, 0.02) == Slower {
			found++
		}
		e, err = Unpaired(a, same)
		require.NoError(t, err)
		if Judge(e, 0.02) == Equal {
			equal++
		}
	}
	require.GreaterOrEqual(t, found, 950)
	require.GreaterOrEqual(t, equal, 950)
}

// Samples that depend on each other give few firm verdicts that are wrong.
func TestUnpairedOfDependentSamples(t *testing.T) {
	for _, n := range []int{30, 100} {
		wrong := 0
		for seed := range uint64(1000) {
			a, b := wandering(rand.New(rand.NewPCG(seed, 4)), n, 0)
			e, err := Unpaired(a, b)
			require.NoError(t, err)
			if v := Judge(e, 0.02); v == Slower || v == Faster {
				wrong++
			}
		}
		require.LessOrEqual(t, wrong, 50, "%d samples", n)
	}
}
