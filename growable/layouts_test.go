package growable_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestLayoutsOfACache has the figures of docs/guides/many.md: 60 tokens of 64 buffers with 128 bytes a
// token, in a range for all of them and in a vector for each.
func TestLayoutsOfACache(t *testing.T) {
	const tokens, buffers, width = 60, 64, 64
	for name, want := range map[string]struct{ rows, vectors uint64 }{
		"host":         {2 << 20, buffers * 2 << 20},
		"host?page=4K": {484 << 10, 512 << 10},
	} {
		d, err := vmm.Open(name)
		require.NoError(t, err)
		token := make([]uint16, buffers*width)
		rows, err := growable.NewRows[uint16](d, len(token), growable.RowsOptions{MaxRows: 4096})
		require.NoError(t, err)
		for range tokens {
			require.NoError(t, rows.Append(token...))
		}
		require.Equal(t, want.rows, d.Stats().Committed, name)
		require.NoError(t, rows.Close())
		all := make([]*growable.Vector[uint16], buffers)
		for i := range all {
			all[i], err = growable.New[uint16](d, growable.Options{MaxLen: 4096 * width})
			require.NoError(t, err)
			for range tokens {
				require.NoError(t, all[i].Append(token[:width]...))
			}
		}
		require.Equal(t, want.vectors, d.Stats().Committed, name)
		for _, v := range all {
			require.NoError(t, v.Close())
		}
		require.NoError(t, d.Close())
	}
}
