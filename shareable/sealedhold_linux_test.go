package shareable

import (
	"context"
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

// TestEndedContext: with a context that has ended nothing is done.
func TestEndedContext(t *testing.T) {
	_, p, g := published(t, vmm.RangeOptions{Max: 2 << 20, Chunk: 2 << 20})
	require.NoError(t, g.Append(make([]byte, 100)))
	require.NoError(t, p.Flush(t.Context()))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 40 {
		require.ErrorIs(t, p.Flush(ended), context.Canceled)
		require.ErrorIs(t, p.Seal(ended, SealOptions{}), context.Canceled)
		require.ErrorIs(t, p.Retire(ended, 10), context.Canceled)
	}
	require.EqualValues(t, 100, p.Len())
}
