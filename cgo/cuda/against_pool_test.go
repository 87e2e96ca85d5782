//go:build cgo && linux

package cuda_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// pairs is blocks that come and go in slots: what is in a slot is freed, and another block
// is allocated for it. Our pool, from Go, and the driver's, from C, do it with the same
// sizes in the same order, each on a stream of its own.
type pairs struct {
	*rivals
	sizes  []uint64
	slots  []uint32
	pool   *pool.Pool
	stream *vmm.Stream
	blocks []pool.Block
	live   []uint64 // C's
}

// pairs has n pairs for a round, of blocks in so many slots.
func (v *rivals) pairs(n, slots int, size func(*rand.Rand) uint64) *pairs {
	v.Helper()
	w := &pairs{rivals: v, sizes: make([]uint64, n), slots: make([]uint32, n), blocks: make([]pool.Block, slots), live: make([]uint64, slots)}
	r := rand.New(rand.NewPCG(seed, uint64(slots)))
	for i := range n {
		w.sizes[i], w.slots[i] = size(r), r.Uint32N(uint32(slots))
	}
	var err error
	w.pool, err = pool.New(v.dev, pool.Options{ReleaseThreshold: math.MaxUint64})
	require.NoError(v, err)
	w.stream, err = v.dev.NewStream()
	require.NoError(v, err)
	require.NoError(v, v.loop.SetPoolThreshold(math.MaxUint64))
	return w
}

func (w *pairs) ours() time.Duration {
	return w.timed(func() error {
		for i, slot := range w.slots {
			b := &w.blocks[slot]
			if b.Ptr() != 0 {
				if err := w.pool.Free(w.stream, *b); err != nil {
					return err
				}
			}
			var err error
			if *b, err = w.pool.Alloc(w.stream, w.sizes[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *pairs) c() time.Duration {
	return w.took(w.loop.PoolPairs(w.sizes, w.slots, w.live))
}

func (w *pairs) end() {
	for _, b := range w.blocks {
		if b.Ptr() != 0 {
			require.NoError(w, w.pool.Free(w.stream, b))
		}
	}
	require.NoError(w, w.stream.Close())
	require.NoError(w, w.pool.Close())
	require.NoError(w, w.loop.PoolFree(w.live))
	require.NoError(w, w.loop.SetPoolThreshold(0))
}

// againstPool measures n pairs in each of the rounds, of each kind. What PyTorch's caching
// allocator takes was measured elsewhere, on an H200.
func againstPool(v *rivals, rounds, n int) {
	v.Helper()
	one := func(size uint64) func(*rand.Rand) uint64 { return func(*rand.Rand) uint64 { return size } }
	out := versus.NewTable("alloc and free\tn\tours ns\t95 %\ttarget ns\t\tdriver's pool in C ns\tratio\t95 %\tPyTorch ns")
	for _, k := range []struct {
		name    string
		slots   int
		size    func(*rand.Rand) uint64
		target  float64
		pytorch string
	}{
		{"4 KiB, warm", 1, one(4 << 10), 80, "280"},
		{"1 MiB, warm", 1, one(1 << 20), 80, "280"},
		{"256 B to 64 KiB, 2,000 live", 2000, func(r *rand.Rand) uint64 { return 256 + r.Uint64N(64<<10-255) }, 150, "640"},
	} {
		w := v.pairs(n, k.slots, k.size)
		took := versus.Rounds(rounds, w.ours, w.c)
		fixed := make([]float64, rounds) // the interval of a ratio to this is that of one pair
		for i := range fixed {
			fixed[i] = float64(n)
		}
		low, high := versus.Interval(took[0], fixed)
		rlow, rhigh := versus.Interval(took[0], took[1])
		ours, theirs := versus.Median(took[0])/float64(n), versus.Median(took[1])/float64(n)
		out.Add("%s\t%d\t%.1f\t[%.1f, %.1f]\t%.0f\t%s\t%.1f\t%.3f\t[%.3f, %.3f]\t%s", k.name, rounds, ours, low, high, k.target,
			versus.Verdict(high <= k.target), theirs, ours/theirs, rlow, rhigh, k.pytorch)
		w.end()
	}
	out.Log(v)
}

// TestPoolAgainstC measures pairs of ours against the driver's pool. A missed target is
// reported in the table; only a wrong result fails the test.
func TestPoolAgainstC(t *testing.T) {
	againstPool(newRivals(t, device(t), "libcuda.so.1"), 200, 10_000)
}

// The times of the fake driver mean nothing. The test is that both sides run and leave
// nothing behind.
func TestPoolAgainstCOnFake(t *testing.T) {
	v, _ := rivalsOnFake(t)
	againstPool(v, 3, 2_500)
}
