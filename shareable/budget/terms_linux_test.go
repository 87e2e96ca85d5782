package budget_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStatsWithoutABound: a member that has no bound says 0, from its first connection on.
func TestStatsWithoutABound(t *testing.T) {
	_, m := join(t, serve(t, 1024*unit), "a", 0)
	require.Zero(t, m.Stats().Most)
}
