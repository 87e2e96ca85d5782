package pool_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestHistory: with Blocks every block is there with its size and stream, and each move of memory.
func TestHistory(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	defer w.end()
	p := w.pool(pool.Options{ChunkSize: chunk, Max: 32 * mib})
	s := w.stream(0)
	d := p.Device()
	d.SetHistory(vmm.HistoryOptions{Events: 100_000, Blocks: true})
	rng := rand.New(rand.NewPCG(3, 4))
	live := map[vmm.Ptr]pool.Block{}
	for range 2000 {
		n := 1 + rng.Uint64N(8*kib)
		if rng.IntN(3) == 0 {
			n = 1 + rng.Uint64N(3*mib)
		}
		b, err := p.Alloc(s, n)
		if err != nil {
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			require.ErrorContains(t, err, "Device.History")
		} else {
			live[b.Ptr()] = b
		}
		for at, b := range live {
			switch {
			case err == nil && len(live) < 30:
			case rng.IntN(4) == 0:
				require.NoError(t, p.FreeNow(b))
				delete(live, at)
			case rng.IntN(4) == 0:
				if b, err := p.Resize(s, b, 1+b.Size()/2); err == nil {
					live[at] = b
				}
			default:
				require.NoError(t, p.Free(s, b))
				delete(live, at)
			}
			break
		}
	}
	found := map[vmm.Ptr]uint64{}
	var moved uint64
	kinds := map[string]int{}
	for _, e := range d.History(0) {
		kinds[e.Kind]++
		switch e.Kind {
		case "alloc", "resize":
			require.Equal(t, s.Number(), e.Stream)
			found[e.Addr] = e.Size
		case "free":
			require.Contains(t, found, e.Addr)
			delete(found, e.Addr)
		case "move":
			moved += e.Size
		}
	}
	require.Len(t, found, len(live))
	for at, b := range live {
		require.Equal(t, b.Size(), found[at])
	}
	st, err := p.Stats()
	require.NoError(t, err)
	require.Equal(t, st.Remapped, moved)
	for _, kind := range []string{"alloc", "free", "resize", "move", "refused", "create", "map"} {
		require.NotZero(t, kinds[kind], kind)
	}

	d.SetHistory(vmm.HistoryOptions{Events: 100})
	b, err := p.Alloc(s, 100)
	require.NoError(t, err)
	require.NoError(t, p.Free(s, b))
	require.Empty(t, d.History(0), "without Blocks")
	for _, b := range live {
		require.NoError(t, p.FreeNow(b))
	}
	require.NoError(t, p.Close())
	require.NoError(t, s.Close())
}
