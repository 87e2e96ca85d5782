package collectivetest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestWindowIsNamed: what a range refuses because its memory is a window says so.
func TestWindowIsNamed(t *testing.T) {
	g := collectivetest.Groups(t, 1)[0]
	r, err := g.Device().NewRange(vmm.RangeOptions{Max: 2 << 20, Share: vmm.ShareFD})
	require.NoError(t, err)
	require.NoError(t, r.Grow(1))
	reg, err := g.Register(t.Context(), r, collective.RegisterOptions{Window: true})
	require.NoError(t, err)
	require.ErrorContains(t, r.Close(), "held: a window of a group [0x0, 0x200000)")
	require.NoError(t, reg.Close())
	require.NoError(t, r.Close())
}
