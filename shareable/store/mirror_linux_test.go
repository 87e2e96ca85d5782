package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestMirrorOfASealedBuffer: a mirror of a View that could be written does not write after the
// seal, which its digest is of.
func TestMirrorOfASealedBuffer(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	s, err := NewServer(dev, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	c, err := s.Connect(t.Context(), dev, ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	w := writer(t, c, "m", CreateOptions{Size: vineyardBytes})
	require.NoError(t, w.Append(bytesOf(vineyardBytes)))
	require.NoError(t, w.Flush(t.Context()))
	b := got(t, c, "m", GetOptions{Unsafe: true, Write: true})
	m := mirrorOf(t, c, b.Ptr(), vmm.MirrorOptions{Init: true, Write: true})
	require.NoError(t, m.Flush())
	clear(m.Bytes())
	require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{Digest: true}))
	require.NoError(t, b.WaitSealed(t.Context()))
	require.ErrorIs(t, m.Flush(), vmm.ErrPermission)
	require.ErrorIs(t, m.Close(), vmm.ErrPermission)
	require.NoError(t, m.Discard())
	require.Equal(t, bytesOf(vineyardBytes), contents(t, b))
}
