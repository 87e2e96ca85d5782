package users

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLows: each read sees the lowest length since it began.
func TestLows(t *testing.T) {
	var l Lows
	l.Lower(1)
	first := l.Begin()
	require.Equal(t, uint64(math.MaxUint64), l.Lowest(first))
	l.Lower(7)
	second := l.Begin()
	l.Lower(9)
	require.EqualValues(t, 7, l.Lowest(first))
	require.EqualValues(t, 9, l.Lowest(second))
	l.End(first)
	third := l.Begin()
	require.Equal(t, uint64(math.MaxUint64), l.Lowest(third), "not what the first has noted")
	l.Lower(3)
	require.EqualValues(t, 3, l.Lowest(second))
	l.End(second)
	l.End(third)
}
