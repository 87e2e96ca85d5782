package budget_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestStatsWithoutABound: a member that has no bound says 0, from its first connection on.
func TestStatsWithoutABound(t *testing.T) {
	_, m := join(t, serve(t, 1024*unit), "a", 0)
	require.Zero(t, m.Stats().Most)
}

// TestTermsAllOrNone: a budget does not change with terms of a member that cannot be.
func TestTermsAllOrNone(t *testing.T) {
	t.Parallel()
	path := serve(t, 64*unit)
	d, _ := join(t, path, "a", 8*unit)
	budgetOf := func() uint64 {
		all, err := budget.Reports(t.Context(), path, d, shareable.AttachOptions{})
		require.NoError(t, err)
		return all[0].Budget
	}
	change := func(bytes, least uint64) error {
		return budget.SetTerms(t.Context(), path, d, budget.Change{Budget: &bytes, Member: "a", Least: &least}, shareable.AttachOptions{})
	}
	require.ErrorIs(t, change(32*unit, 33*unit), vmm.ErrLimit)
	require.EqualValues(t, 64*unit, budgetOf())
	require.NoError(t, change(128*unit, 100*unit), "of the new budget")
	require.EqualValues(t, 128*unit, budgetOf())
}
