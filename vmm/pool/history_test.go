package pool_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
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
			require.Equal(t, inside.VMM.StreamNumber(s), e.Stream)
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

// TestHistoryOfARefusal: what the pool tries on the way is no refusal; the call that fails is one, with
// what it was asked for.
func TestHistoryOfARefusal(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	defer w.end()
	s := w.stream(0)
	var held []pool.Block
	var p *pool.Pool
	p = w.pool(pool.Options{ChunkSize: chunk, OnOOM: func(*vmm.Stream, uint64) bool {
		if len(held) == 0 {
			return false
		}
		require.NoError(t, p.FreeNow(held[0]))
		held = held[1:]
		return true
	}})
	d := p.Device()
	d.SetLimit(16 * chunk)
	d.SetHistory(vmm.HistoryOptions{Events: 1000})
	for range 16 {
		b, err := p.Alloc(s, chunk)
		require.NoError(t, err)
		held = append(held, b)
	}
	b, err := p.Alloc(s, 2*chunk)
	require.NoError(t, err)
	refused := func() (sizes []uint64) {
		for _, e := range d.History(0) {
			if e.Kind == "refused" {
				sizes = append(sizes, e.Size)
			}
		}
		return sizes
	}
	for _, size := range refused() {
		require.EqualValues(t, chunk, size, "the Create of a pool inside a call")
	}
	d.SetHistory(vmm.HistoryOptions{Events: 1000})
	_, err = p.Alloc(s, 17*chunk)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.Contains(t, refused(), uint64(17*chunk))
	for _, x := range append(held, b) {
		require.NoError(t, p.FreeNow(x))
	}
	require.NoError(t, p.Close())
	require.NoError(t, s.Close())
}
