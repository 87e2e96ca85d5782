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
			l := sizes.Ladder{Gran: g, Most: c.most, Fixed: c.fixed}
			require.Equal(t, c.want, slices.Collect(l.Chunks(l.Growth(c.need, c.committed, c.left))))
		})
	}
}

// TestFew: however a range grows, its handles and its slack stay within their bounds.
func TestFew(t *testing.T) {
	const g, gib = 2 << 20, 1 << 30
	l := sizes.Ladder{Gran: g, Most: 2 * gib, Few: true}
	for _, size := range []uint64{1, g, g + 1, 3 * g, 100 << 20, gib - 1, gib, 5*gib + 12345, 16 * gib} {
		for _, step := range []uint64{
			64 << 10, 1 << 20, g - 1, g, g + 1, 3 * g, 7 * g, 31 << 20, 32 << 20, 33 << 20, 64 << 20,
			127 * g, 255 * g, gib, gib + g, 2*gib - g, 2 * gib, 2*gib + g, 3*gib + 7, 16 * gib,
		} {
			var need, have uint64
			handles := 0
			for need < size {
				need = min(need+step, size)
				if need <= have {
					continue
				}
				for c := range l.Chunks(l.Growth((need-have+g-1)/g*g, have, 64*gib-have)) {
					require.LessOrEqual(t, c, l.Most)
					require.Zero(t, c%g)
					have += c
					handles++
				}
				require.LessOrEqual(t, have-need, max(g-1, need/100*15+100), "slack at %d of %d by %d", need, size, step)
			}
			require.LessOrEqual(t, handles, 64, "%d by %d", size, step)
		}
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
		l := sizes.Ladder{Gran: gran, Most: most}
		for s := range l.Chunks(l.Growth(need, committed, left)) {
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
