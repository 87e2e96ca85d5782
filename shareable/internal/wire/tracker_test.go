package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func tracker(t testing.TB) *Tracker {
	t.Helper()
	k, err := NewTracker(Object{ID: 7, Max: 100 * 16, Generation: 3}, Limits{Granularity: 16})
	require.NoError(t, err)
	return k
}

func TestTrackerGrowsAndShrinks(t *testing.T) {
	k := tracker(t)
	one, two, three := Chunk{1, 0, 16}, Chunk{2, 16, 32}, Chunk{5, 48, 16}
	fresh, skip, err := k.Chunks(Chunks{7, 3, []Chunk{one, two}})
	require.NoError(t, err)
	require.Equal(t, []Chunk{one, two}, fresh)
	require.Zero(t, skip)
	require.Zero(t, k.End())
	k.Mapped(1)
	require.Equal(t, uint64(16), k.End())
	require.Equal(t, uint64(1), k.LastID())

	fresh, skip, err = k.Chunks(Chunks{7, 3, []Chunk{one, two, three}})
	require.NoError(t, err)
	require.Equal(t, []Chunk{two, three}, fresh)
	require.Equal(t, 1, skip)
	k.Mapped(2)
	require.Equal(t, uint64(64), k.End())
	require.Equal(t, []Chunk{one, two, three}, k.Known())

	keep, from, err := k.Retire(Retire{7, 4, 16})
	require.NoError(t, err)
	require.Equal(t, 1, keep)
	require.Equal(t, uint64(16), from)
	require.Equal(t, uint64(4), k.Generation())
	require.Equal(t, uint64(5), k.LastID())

	_, _, err = k.Chunks(Chunks{7, 4, []Chunk{{5, 16, 16}}})
	require.ErrorContains(t, err, "after id 5")
	fresh, _, err = k.Chunks(Chunks{7, 4, []Chunk{{6, 16, 16}}})
	require.NoError(t, err)
	require.Len(t, fresh, 1)
}
