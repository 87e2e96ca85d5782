package pool_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// apart checks that a stream does not get the memory of b.
func apart(t *testing.T, p *pool.Pool, s *vmm.Stream, b pool.Block, why string) {
	t.Helper()
	c := alloc(t, p, s, b.Size())
	require.True(t, c.Ptr()+vmm.Ptr(c.Size()) <= b.Ptr() || b.Ptr()+vmm.Ptr(b.Size()) <= c.Ptr(), why)
	require.NoError(t, p.Free(s, c))
}

// TestFreeNowOfReusedMemory: that no work uses a block any more says nothing about the block
// that was there before.
func TestFreeNowOfReusedMemory(t *testing.T) {
	for _, n := range []uint64{48 * kib, 5 * chunk} {
		w := newWorld(t, 1, 64*mib)
		p, g := w.pool(pool.Options{ReleaseThreshold: 64 * mib}), w.gates(0)
		s, other := w.stream(0), w.stream(0)
		first := alloc(t, p, s, n)
		open := g.hold(s)
		require.NoError(t, s.Fill(first.Ptr(), 1, 4, n/4))
		require.NoError(t, p.Free(s, first))
		again := alloc(t, p, s, n)
		require.Equal(t, first.Ptr(), again.Ptr())
		require.NoError(t, p.FreeNow(again))
		require.NoError(t, pool.Check(p))
		apart(t, p, other, first, "the fill has not run")
		_, err := p.TrimTo(0)
		require.NoError(t, err)
		open()
		require.NoError(t, s.Sync(), "the memory was not taken away")
		require.NoError(t, pool.Check(p))
		closeAll(t, s, other, p)
		w.end()
	}
}

// TestFreeNowOfResizedMemory: what a block has got behind it may be in use as well.
func TestFreeNowOfResizedMemory(t *testing.T) {
	const n = 5 * chunk
	w := newWorld(t, 1, 64*mib)
	p, g := w.pool(pool.Options{ReleaseThreshold: 64 * mib}), w.gates(0)
	s, other := w.stream(0), w.stream(0)
	whole := alloc(t, p, s, 2*n)
	open := g.hold(s)
	require.NoError(t, s.Fill(whole.Ptr(), 1, 4, 2*n/4))
	b, err := p.Resize(s, whole, n)
	require.NoError(t, err)
	b, err = p.Resize(s, b, 2*n)
	require.NoError(t, err)
	require.NoError(t, p.FreeNow(b))
	require.NoError(t, pool.Check(p))
	rest := alloc(t, p, other, n)
	require.NotEqual(t, whole.Ptr()+n, rest.Ptr(), "the fill has not run")
	_, err = p.TrimTo(0)
	require.NoError(t, err)
	open()
	require.NoError(t, s.Sync())
	require.NoError(t, p.Free(other, rest))
	closeAll(t, s, other, p)
	w.end()
}

// TestFreeNowOfABlockOfAnotherSlab: a block that a stream has again after it was freed there
// is not its slab's before the stream has come so far.
func TestFreeNowOfABlockOfAnotherSlab(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	p, g := w.pool(pool.Options{}), w.gates(0)
	s, other := w.stream(0), w.stream(0)
	const n = 1024
	first := alloc(t, p, s, n)
	open := g.hold(other)
	require.NoError(t, other.Fill(first.Ptr(), 1, 4, n/4))
	require.NoError(t, p.Free(other, first))
	again := alloc(t, p, other, n)
	require.Equal(t, first.Ptr(), again.Ptr())
	require.NoError(t, p.FreeNow(again))
	require.NoError(t, pool.Check(p))
	var all []pool.Block
	for range 100 {
		b := alloc(t, p, s, n)
		require.NotEqual(t, first.Ptr(), b.Ptr(), "the fill has not run")
		all = append(all, b)
	}
	open()
	for _, b := range all {
		require.NoError(t, p.Free(s, b))
	}
	closeAll(t, s, other, p)
	w.end()
}

// TestSlabOfFollowedBlocksIsNotIdle: a stream that waits for another may have what was freed
// there; its slab has not come to rest with that.
func TestSlabOfFollowedBlocksIsNotIdle(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	p, g := w.pool(pool.Options{ReleaseThreshold: 64 * mib}), w.gates(0)
	s, other, third := w.stream(0), w.stream(0), w.stream(0)
	const n = 8 * kib
	var all []pool.Block
	for range 8 { // a slab
		all = append(all, alloc(t, p, s, n))
	}
	require.NoError(t, s.Sync())
	open := g.hold(other)
	for _, b := range all {
		require.NoError(t, other.Fill(b.Ptr(), 1, 4, n/4))
		require.NoError(t, p.Free(other, b))
	}
	e, err := other.Record()
	require.NoError(t, err)
	require.NoError(t, s.Wait(e))
	next := alloc(t, p, s, n)
	require.NoError(t, p.FreeNow(next))
	_, err = p.TrimTo(64 * mib) // gathers slabs without blocks
	require.NoError(t, err)
	b := alloc(t, p, third, 4*n)
	require.True(t, b.Ptr()+4*n <= all[0].Ptr() || all[7].Ptr()+n <= b.Ptr(), "the fills have not run")
	_, err = p.TrimTo(0)
	require.NoError(t, err)
	open()
	require.NoError(t, other.Sync())
	require.NoError(t, p.Free(third, b))
	closeAll(t, e, s, other, third, p)
	w.end()
}
