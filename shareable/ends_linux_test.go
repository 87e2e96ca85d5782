package shareable

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// TestDescribeAfterClose: a STAT has found the object, and then it is closed.
func TestDescribeAfterClose(t *testing.T) {
	_, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	require.NoError(t, p.Flush(t.Context()))
	require.NoError(t, p.Close())
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NotPanics(t, func() {
		o := p.describe(wire.AccessRead)
		require.Equal(t, wire.StateClosed, o.State)
		require.Equal(t, uint64(100), o.Length)
	})
}
