package freelist

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestAgainstAList holds every operation to a plain list in the order of arrival.
func TestAgainstAList(t *testing.T) {
	type piece struct {
		kind string
		size uint64
		id   int
	}
	rapid.Check(t, func(t *rapid.T) {
		var p List[string, int]
		var all []piece
		next := 0
		kinds, sizes := rapid.SampledFrom([]string{"a", "b"}), rapid.Uint64Range(1, 5)
		same := func(got *Piece[string, int], want int) {
			if want < 0 {
				require.Nil(t, got)
				return
			}
			require.NotNil(t, got)
			require.Equal(t, all[want], piece{got.Kind, got.Size, got.Value})
			all = slices.Delete(all, want, want+1)
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				x := piece{kinds.Draw(t, "kind"), sizes.Draw(t, "size"), next}
				next++
				p.Put(x.kind, x.size, x.id)
				all = append(all, x)
			},
			"take": func(t *rapid.T) {
				kind, least, most := kinds.Draw(t, "kind"), sizes.Draw(t, "least"), sizes.Draw(t, "most")
				if rapid.Bool().Draw(t, "any") {
					most = math.MaxUint64
				}
				best := -1
				for i, x := range all {
					if x.kind == kind && x.size >= least && x.size <= most && (best < 0 || x.size > all[best].size) {
						best = i
					}
				}
				same(p.Take(kind, least, most), best)
			},
			"oldest": func(*rapid.T) {
				if len(all) == 0 {
					require.Nil(t, p.Oldest())
					return
				}
				same(p.Oldest(), 0)
			},
			"": func(*rapid.T) {
				var sum uint64
				for _, x := range all {
					sum += x.size
				}
				require.Equal(t, sum, p.Bytes)
			},
		})
	})
}

// TestNothingIsLeft: what is empty holds on to no kind and no size.
func TestNothingIsLeft(t *testing.T) {
	var p List[int, int]
	for i := range 100 {
		p.Put(i, uint64(i+1), i)
	}
	for range 100 {
		require.NotNil(t, p.Oldest())
	}
	require.Empty(t, p.byKind)
	require.Zero(t, p.Bytes)
}
