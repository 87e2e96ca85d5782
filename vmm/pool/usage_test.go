package pool_test

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestUsage: after each of many random calls, chunks and streams add up to what Stats says.
func TestUsage(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	defer w.end()
	p := w.pool(pool.Options{ChunkSize: 4 * chunk})
	streams := []*vmm.Stream{w.stream(0), w.stream(0)}
	rng := rand.New(rand.NewPCG(1, 2))
	var blocks []pool.Block
	pending, inSlabs := false, false
	for step := range 600 {
		s := streams[rng.IntN(2)]
		if len(blocks) > 60 || len(blocks) > 0 && rng.IntN(3) == 0 {
			i := rng.IntN(len(blocks))
			require.NoError(t, p.Free(s, blocks[i]))
			blocks[i] = blocks[len(blocks)-1]
			blocks = blocks[:len(blocks)-1]
		} else {
			n := 1 + rng.Uint64N(8*kib)
			if rng.IntN(3) == 0 {
				n = 1 + rng.Uint64N(1*mib)
			}
			b, err := p.Alloc(s, n)
			require.NoError(t, err)
			blocks = append(blocks, b)
		}
		if step%50 == 49 {
			require.NoError(t, s.Sync())
		}
		u, err := p.Usage()
		require.NoError(t, err)
		checkUsage(t, p, u)
		pending = pending || u.Stats.Pending > 0
		inSlabs = inSlabs || u.Stats.InSlabs > 0
	}
	require.True(t, pending && inSlabs, "what the test is about was seen")
	for _, b := range blocks {
		require.NoError(t, p.FreeNow(b))
	}
	require.NoError(t, p.Close())
	u, err := p.Usage()
	require.NoError(t, err)
	require.Empty(t, u.Chunks)
	for _, s := range streams {
		require.NoError(t, s.Close())
	}
}

// TestUsageWhileChunksMove is for the race detector.
func TestUsageWhileChunksMove(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	defer w.end()
	p, s := w.pool(pool.Options{ChunkSize: chunk, Max: 8 * chunk}), w.stream(0)
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			u, err := p.Usage()
			require.NoError(t, err)
			require.LessOrEqual(t, len(u.Chunks), 8)
		}
	})
	for i := range 100 {
		require.NoError(t, p.FreeNow(alloc(t, p, s, uint64(1+i%6)*chunk)))
		_, err := p.TrimTo(0)
		require.NoError(t, err)
	}
	close(stop)
	group.Wait()
	closeAll(t, s, p)
}

// TestCloseIsNamed: what holds the device open while Close gives memory back has a name.
func TestCloseIsNamed(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	defer w.end()
	p, s := w.pool(pool.Options{ChunkSize: chunk}), w.stream(0)
	require.NoError(t, p.FreeNow(alloc(t, p, s, 3*chunk)))
	require.NoError(t, s.Close())
	released := 0
	w.watch(func(c drivertest.Call) error {
		if c.Name == "Release" {
			released++
			require.ErrorContains(t, w.devs[0].Close(), "in use: pool that is closing made at ")
		}
		return nil
	})
	require.NoError(t, p.Close())
	w.watch(nil)
	require.Equal(t, 3, released)
}

func checkUsage(t *testing.T, p *pool.Pool, u pool.Usage) {
	t.Helper()
	st, err := p.Stats()
	require.NoError(t, err)
	require.Equal(t, st, u.Stats)
	var sum pool.ChunkUsage
	for i, c := range u.Chunks {
		require.True(t, i == 0 || u.Chunks[i-1].Addr < c.Addr, "by address")
		require.LessOrEqual(t, c.Used+c.InSlabs+c.Pending+c.Idle, c.Size, "chunk %d", i)
		require.LessOrEqual(t, c.Longest, c.Pending+c.Idle, "chunk %d", i)
		require.Equal(t, c.Pending+c.Idle > 0, c.Longest > 0, "chunk %d", i)
		sum.Size += c.Size
		sum.Used += c.Used
		sum.InSlabs += c.InSlabs
		sum.Pending += c.Pending
		sum.Idle += c.Idle
	}
	require.Equal(t, pool.ChunkUsage{Size: st.Reserved, Used: st.Used, InSlabs: st.InSlabs, Pending: st.Pending, Idle: u.Idle}, sum)
	var pending, inSlabs uint64
	for _, s := range u.Streams {
		pending += s.Pending
		inSlabs += s.InSlabs
		for i, c := range s.Classes {
			require.True(t, i == 0 || s.Classes[i-1].Size < c.Size, "by size")
		}
	}
	require.Equal(t, []uint64{st.Pending, st.InSlabs}, []uint64{pending, inSlabs}, "of streams")
}

// TestUsageOfNoPool: a zero value has an error.
func TestUsageOfNoPool(t *testing.T) {
	for _, p := range []*pool.Pool{nil, {}} {
		_, err := p.Usage()
		require.ErrorIs(t, err, vmm.ErrInvalid)
	}
}

// BenchmarkUsage: how long the other calls of a pool wait for one Usage.
func BenchmarkUsage(b *testing.B) {
	w := newWorld(b, 1, 512*mib)
	defer w.end()
	p := w.pool(pool.Options{ChunkSize: 2 * mib})
	s := w.stream(0)
	blocks := make([]pool.Block, 100_000)
	for i := range blocks {
		var err error
		blocks[i], err = p.Alloc(s, 1*kib)
		require.NoError(b, err)
	}
	for b.Loop() {
		_, err := p.Usage()
		require.NoError(b, err)
	}
	for _, x := range blocks {
		require.NoError(b, p.FreeNow(x))
	}
	require.NoError(b, s.Close())
	require.NoError(b, p.Close())
}
