package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// TestAppendThatFitsAllocatesNothing, and neither does a write, on the host driver.
func TestAppendThatFitsAllocatesNothing(t *testing.T) {
	if lock.Ordered {
		t.Skip("the race detector allocates")
	}
	d, err := vmm.Open("host")
	require.NoError(t, err)
	g, err := d.NewRange(vmm.RangeOptions{Max: 4 * mib})
	require.NoError(t, err)
	require.NoError(t, g.Grow(mib))
	row := make([]byte, 64)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		require.NoError(t, g.Append(row))
		_, err := g.WriteAt(row, 0)
		require.NoError(t, err)
	}))
	require.NoError(t, g.Close())
	require.NoError(t, d.Close())
}
