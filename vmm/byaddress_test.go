package vmm

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestByAddress against a map, with blocks that split and go.
func TestByAddress(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var a byAddress
	have := map[Ptr]*Reservation{}
	for step := range 60_000 {
		p := Ptr(100 * (1 + r.IntN(3000)))
		if grow := step/10_000%2 == 0; have[p] == nil && (grow || r.IntN(4) == 0) {
			have[p] = &Reservation{ptr: p, size: 60}
			a.add(have[p])
		} else if have[p] != nil && (!grow || r.IntN(4) == 0) {
			a.remove(have[p])
			delete(have, p)
		}
		q := Ptr(100 * (1 + r.IntN(3000)))
		require.Equal(t, have[q], a.find(q))
		require.Equal(t, have[q], a.find(q+59))
		require.Nil(t, a.find(q+60))
	}
	for _, b := range a {
		require.NotEmpty(t, b)
		require.LessOrEqual(t, len(b), blockSize)
	}
	for _, x := range have {
		a.remove(x)
	}
	require.Empty(t, a)
	require.Nil(t, a.find(100))
	a.remove(&Reservation{ptr: 100})
}
