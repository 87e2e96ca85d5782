package shareable

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// TestSealHoldsTheFinalLength: what the owner appends after Seal is its own, and can be dropped. The
// sealed bytes cannot.
func TestSealHoldsTheFinalLength(t *testing.T) {
	t.Parallel()
	_, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	require.NoError(t, p.Seal(t.Context(), SealOptions{KeepWriting: true}))
	require.NoError(t, g.Append(pattern(0, 100)))
	require.ErrorIs(t, g.SetLen(99), vmm.ErrBusy)
	require.NoError(t, g.SetLen(100))
	require.Equal(t, uint64(100), p.Len())
	require.ErrorIs(t, g.SetLen(99), vmm.ErrBusy)
	require.ErrorIs(t, g.Close(), vmm.ErrBusy)
}
