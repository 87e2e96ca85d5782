package versus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/versus"
)

func TestRounds(t *testing.T) {
	var calls [2]int
	way := func(i int) func() time.Duration {
		return func() time.Duration {
			require.LessOrEqual(t, calls[i], calls[1-i], "each once a round")
			calls[i]++
			return time.Duration(i + 1)
		}
	}
	took := versus.Rounds(10, way(0), way(1))
	require.Equal(t, [2]int{11, 11}, calls)
	require.Len(t, took[0], 10)
	require.InDelta(t, 1, versus.Median(took[0]), 0)
	low, high := versus.Interval(took[1], took[0])
	require.InDelta(t, 2, low, 0)
	require.InDelta(t, 2, high, 0)
}

func TestIntervalHoldsTheRatio(t *testing.T) {
	var a, b []float64
	for i := range 40 {
		slow := float64(i % 7) // of a round, for both
		a, b = append(a, 100+slow+float64(i%3)), append(b, 50+slow/2+float64(i%2))
	}
	low, high := versus.Interval(a, b)
	require.Less(t, low, high)
	require.Less(t, low, 2.0)
	require.Greater(t, high, 1.9)
	again, _ := versus.Interval(a, b)
	require.InDelta(t, low, again, 0, "drawn from a seed")
}
