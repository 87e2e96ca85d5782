package pool_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

func TestHoldBlock(t *testing.T) {
	for _, n := range []uint64{100, 48 * kib, 3 * chunk} {
		w := newWorld(t, 1, 64*mib)
		p, s := w.pool(pool.Options{}), w.stream(0)
		b, beside := alloc(t, p, s, n), alloc(t, p, s, n)
		release, err := p.HoldBlock(b)
		require.NoError(t, err)
		again, err := p.HoldBlock(b)
		require.NoError(t, err)

		held := func() {
			require.ErrorIs(t, p.Free(s, b), vmm.ErrBusy)
			require.ErrorIs(t, p.FreeNow(b), vmm.ErrBusy)
			_, err = p.Resize(s, b, n/2)
			require.ErrorIs(t, err, vmm.ErrBusy)
			require.ErrorIs(t, p.Close(), vmm.ErrBusy)
			found, ok := p.Find(b.Ptr())
			require.True(t, ok)
			require.ErrorIs(t, p.FreeNow(found), vmm.ErrBusy, "a block that was found is the same one")
			require.NoError(t, pool.Check(p))
		}
		held()
		release()
		release()
		held()
		again()
		require.NoError(t, p.Free(s, b))
		_, err = p.HoldBlock(b)
		require.ErrorIs(t, err, pool.ErrDoubleFree)
		require.NoError(t, p.Free(s, beside))
		require.ErrorIs(t, p.Free(s, b), pool.ErrDoubleFree)
		closeAll(t, s, p)
		w.end()
	}
}

func TestHoldNoBlock(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	p, other, s := w.pool(pool.Options{}), w.pool(pool.Options{}), w.stream(0)
	foreign, none := alloc(t, other, s, kib), alloc(t, p, s, 0)
	long := alloc(t, p, s, 4*chunk)
	short, err := p.Resize(s, long, chunk)
	require.NoError(t, err)
	for _, test := range []struct {
		b    pool.Block
		want error
	}{
		{pool.Block{}, pool.ErrForeignBlock},
		{foreign, pool.ErrForeignBlock},
		{none, vmm.ErrInvalid},
		{long, vmm.ErrInvalid}, // what was behind it may be another block's
	} {
		_, err := p.HoldBlock(test.b)
		require.ErrorIs(t, err, test.want)
	}
	require.NoError(t, p.Free(s, short), "none is held")
	require.NoError(t, other.Free(s, foreign))
	closeAll(t, s, p, other)
	_, err = p.HoldBlock(short)
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = (*pool.Pool)(nil).HoldBlock(short)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	w.end()
}

// TestHoldBesideFree: a hold that succeeds comes before the free, and keeps it away.
func TestHoldBesideFree(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	for i := range testgate.Effort(100, 500, 5000) {
		b := alloc(t, p, s, []uint64{256, 2 * chunk}[i%2])
		var freed, holds atomic.Int32
		var tasks sync.WaitGroup
		for range 2 {
			tasks.Go(func() {
				release, err := p.HoldBlock(b)
				if err != nil {
					return
				}
				holds.Add(1)
				if freed.Load() != 0 {
					t.Error("a block that was freed is held")
				}
				holds.Add(-1)
				release()
			})
			tasks.Go(func() {
				if p.FreeNow(b) == nil {
					if holds.Load() != 0 {
						t.Error("a block that is held was freed")
					}
					freed.Add(1)
				}
			})
		}
		tasks.Wait()
		require.LessOrEqual(t, freed.Load(), int32(1))
		if freed.Load() == 0 {
			require.NoError(t, p.FreeNow(b))
		}
		require.NoError(t, pool.Check(p))
	}
	closeAll(t, s, p)
	w.end()
}

// TestFreeBesideARelease: a block that is released while it is freed is busy, and was not freed before.
func TestFreeBesideARelease(t *testing.T) {
	w := newWorld(t, 1, 64*chunk)
	p, s := w.pool(pool.Options{}), w.stream(0)
	for range testgate.Effort(2000, 20000, 100000) {
		b := alloc(t, p, s, 200)
		release, err := p.HoldBlock(b)
		require.NoError(t, err)
		var released sync.WaitGroup
		released.Go(release)
		for err = vmm.ErrBusy; err != nil; err = p.Free(s, b) {
			require.ErrorIs(t, err, vmm.ErrBusy)
		}
		released.Wait()
	}
	closeAll(t, s, p)
	w.end()
}
