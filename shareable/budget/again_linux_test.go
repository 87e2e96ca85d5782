package budget_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/budget"
)

// TestAgainWithLess: members whose promises do not fit into the budget of the next broker are its members all the same,
// with their memory, and with what is left to promise.
func TestAgainWithLess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "b.sock")
	broker := func(bytes uint64) *budget.Server {
		s, err := budget.Serve(path, budget.ServeOptions{Budgets: []budget.Budget{{Device: process(t), Bytes: bytes}}})
		require.NoError(t, err)
		return s
	}
	first := broker(16 * unit)
	a, ma := join(t, path, "a", 8*unit)
	b, mb := join(t, path, "b", 8*unit)
	require.NoError(t, vector(t, a).Grow(8*unit))
	require.NoError(t, vector(t, b).Grow(8*unit))
	require.NoError(t, first.Close())
	next := broker(12 * unit)
	defer func() { require.NoError(t, next.Close()) }()
	for _, m := range []*budget.Member{ma, mb} {
		require.Eventually(t, func() bool { return m.Stats().Err == nil && len(next.Reports()[0].Members) == 2 },
			10*time.Second, time.Millisecond)
		require.EqualValues(t, 8*unit, m.Stats().Lease)
	}
	require.EqualValues(t, 12*unit, ma.Stats().Least+mb.Stats().Least)
}
