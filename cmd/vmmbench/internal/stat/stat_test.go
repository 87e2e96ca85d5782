package stat

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSummarize(t *testing.T) {
	s := Summarize([]float64{5, 1, 4, 2, 3}, 1)
	require.Equal(t, 5, s.N)
	require.Equal(t, 3.0, s.Median)
	require.Equal(t, 1.0, s.MAD)
	require.Equal(t, 1.0, s.Min)
	require.Equal(t, 5.0, s.Max)
	require.LessOrEqual(t, s.Interval.Low, s.Median)
	require.GreaterOrEqual(t, s.Interval.High, s.Median)
	require.Equal(t, s, Summarize([]float64{5, 1, 4, 2, 3}, 1), "the same seed gives the same interval")

	one := Summarize([]float64{7}, 1)
	require.Equal(t, Interval{7, 7}, one.Interval)
	require.Zero(t, one.CV)
}

func TestRatio(t *testing.T) {
	a := []float64{1, 2, 3, 4, 5, 6}
	ratio, of, err := Ratio(a, []float64{2, 4, 6, 8, 10, 12, 100}, 1)
	require.NoError(t, err)
	require.Equal(t, 2.0, ratio)
	require.Equal(t, Interval{2, 2}, of, "pairs are kept together, so what changes both alike cancels")

	_, _, err = Ratio(a[:5], a[:5], 1)
	require.ErrorContains(t, err, "needs 6", "five samples have no 95 % interval")
	_, _, err = Ratio([]float64{0, 1, 1, 1, 1, 1}, a, 1)
	require.Error(t, err, "a ratio to zero is none")
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		of   Interval
		want Verdict
	}{
		{Interval{0.99, 1.01}, Equal},
		{Interval{0.98, 1.02}, Equal},
		{Interval{1.03, 1.05}, Slower},
		{Interval{0.90, 0.97}, Faster},
		{Interval{0.97, 1.00}, Unclear},
		{Interval{1.01, 1.05}, Unclear},
		{Interval{0.5, 2}, Unclear},
	} {
		require.Equal(t, c.want, Judge(c.of, 0.02), "%v", c.of)
	}
}

// With a spread of 1 %, 20 samples and a margin of 2 %, what is equal is found
// equal and a slowdown of 5 % is found, each for at least 95 of 100 seeds.
func TestVerdictPower(t *testing.T) {
	seeds := 100
	if os.Getenv("VMM_SOAK") != "" {
		seeds = 1000
	}
	for _, c := range []struct {
		slowdown float64
		want     Verdict
	}{{0, Equal}, {0.05, Slower}, {-0.05, Faster}} {
		right := 0
		for seed := range uint64(seeds) {
			r := rand.New(rand.NewPCG(seed, 1))
			a, b := make([]float64, 20), make([]float64, 20)
			for i := range a {
				a[i] = 1e6 * (1 + 0.01*r.NormFloat64())
				b[i] = 1e6 * (1 + c.slowdown) * (1 + 0.01*r.NormFloat64())
			}
			_, of, err := Ratio(a, b, seed)
			require.NoError(t, err)
			if Judge(of, 0.02) == c.want {
				right++
			}
		}
		require.GreaterOrEqual(t, right, seeds*95/100, "slowdown %g", c.slowdown)
	}
}

func TestDrifts(t *testing.T) {
	flat, rising := make([]float64, 20), make([]float64, 20)
	for i := range flat {
		flat[i] = 100 + float64(i%3)*0.1
		rising[i] = 100 + float64(i)*2
	}
	require.False(t, Drifts(flat, 0.02, 1))
	require.True(t, Drifts(rising, 0.02, 1))
	require.False(t, Drifts([]float64{1, 2, 3}, 0.02, 1), "three samples show no drift")
}
