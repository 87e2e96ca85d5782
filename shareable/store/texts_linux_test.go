package store

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestWrittenBytesAreNamed: what the range of a Writer refuses because bytes are held says of which
// object they are, and a name that is unknown is said to be so once.
func TestWrittenBytesAreNamed(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "x", CreateOptions{Size: 1 << 20})
	require.ErrorContains(t, w.Range().Close(), `held: writing object "x"`)
	require.NoError(t, w.Append([]byte("abc")))
	require.NoError(t, w.Flush(t.Context()))
	err := w.Range().SetLen(1)
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.ErrorContains(t, err, `held: writing object "x" [0x0, 0x3)`)
	require.NoError(t, w.Close())
	_, err = c.Get(t.Context(), "y", GetOptions{})
	require.ErrorIs(t, err, shareable.ErrNotFound)
	require.Equal(t, 1, strings.Count(err.Error(), "no object"), err)
	require.NoError(t, c.Close())
	require.NoError(t, s.Close())
}
