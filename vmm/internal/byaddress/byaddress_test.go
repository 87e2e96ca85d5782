package byaddress

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// TestIndex against a map, with blocks that split and go.
func TestIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var a Index[int]
	have := map[driver.Ptr]int{} // to the step that added it, from 1 on
	for step := 1; step <= 60_000; step++ {
		p := driver.Ptr(100 * (1 + r.IntN(3000)))
		if grow := step/10_000%2 == 0; have[p] == 0 && (grow || r.IntN(4) == 0) {
			have[p] = step
			a.Add(p, 60, step)
		} else if have[p] != 0 && (!grow || r.IntN(4) == 0) {
			a.Remove(p)
			delete(have, p)
		}
		q := driver.Ptr(100 * (1 + r.IntN(3000)))
		for off, want := range map[driver.Ptr]int{0: have[q], 59: have[q], 60: 0} {
			got, found := a.Find(q + off)
			require.Equal(t, want, got)
			require.Equal(t, want != 0, found)
		}
	}
	for _, b := range a {
		require.NotEmpty(t, b)
		require.LessOrEqual(t, len(b), blockSize)
	}
	for p := range have {
		a.Remove(p)
	}
	require.Empty(t, a)
	_, found := a.Find(100)
	require.False(t, found)
	a.Remove(100)
}
