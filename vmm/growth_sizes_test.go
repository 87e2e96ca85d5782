package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cuvmm/cuvmm/vmm"
)

// What a range commits beyond its length is a quarter of that at most, or one
// granule.
func TestARangeWastesAQuarterAtMost(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, 1)
		g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 4096 * page})
		require.NoError(rt, err)
		for range 30 {
			n := rapid.Uint64Range(1, 64*page).Draw(rt, "more")
			require.NoError(rt, g.Grow(n))
			require.NoError(rt, g.SetLen(g.Len()+n))
			waste := w.devs[0].Stats().Committed - g.Len()
			require.LessOrEqual(rt, waste, max(page, g.Len()/4))
		}
		require.NoError(rt, g.Close())
		w.end()
	})
}
