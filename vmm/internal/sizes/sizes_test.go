package sizes_test

import (
	"math/bits"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cuvmm/cuvmm/vmm/internal/sizes"
)

func TestSizes(t *testing.T) {
	const g = 2 << 20
	for _, c := range []struct {
		name                               string
		need, committed, left, most, fixed uint64
		want                               []uint64
	}{
		{"one granule", g, 0, 64 * g, 1 << 31, 0, []uint64{g}},
		{"powers of two, largest first", 7 * g, 0, 64 * g, 1 << 31, 0, []uint64{4 * g, 2 * g, g}},
		{"a quarter on top", g, 64 * g, 64 * g, 1 << 31, 0, []uint64{16 * g}},
		{"a quarter rounded down", g, 30 * g, 64 * g, 1 << 31, 0, []uint64{4 * g, 2 * g, g}},
		{"never beyond what is left", g, 64 * g, 3 * g, 1 << 31, 0, []uint64{2 * g, g}},
		{"never above the largest", 9 * g, 0, 64 * g, 4 * g, 0, []uint64{4 * g, 4 * g, g}},
		{"a fixed size", 5 * g, 64 * g, 64 * g, 1 << 31, 4 * g, []uint64{4 * g, 4 * g}},
		{"nothing needed, nothing there", 0, 0, 64 * g, 1 << 31, 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, slices.Collect(sizes.Chunks(sizes.Growth(c.need, c.committed, c.left, g, c.fixed), c.most, c.fixed)))
		})
	}
}

func TestSizesKeepTheirPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gran := uint64(1) << rapid.IntRange(12, 21).Draw(t, "gran")
		committed := gran * rapid.Uint64Range(0, 1<<16).Draw(t, "committed")
		left := gran * rapid.Uint64Range(1, 1<<16).Draw(t, "left")
		need := gran * rapid.Uint64Range(1, left/gran).Draw(t, "need")
		most := gran << rapid.IntRange(0, 12).Draw(t, "most")
		var sum uint64
		last := most
		for s := range sizes.Chunks(sizes.Growth(need, committed, left, gran, 0), most, 0) {
			require.Equal(t, 1, bits.OnesCount64(s))
			require.Zero(t, s%gran)
			require.LessOrEqual(t, s, last)
			last = s
			sum += s
		}
		require.GreaterOrEqual(t, sum, need)
		require.LessOrEqual(t, sum, left)
		require.LessOrEqual(t, sum, max(need, committed/4), "waste stays under a quarter")
	})
}
