package pool_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestLookup: whose an address is.
func TestLookup(t *testing.T) {
	w := newWorld(t, 2, 16*mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	theirs, err := pool.NewDriver(w.devs[1], pool.Options{})
	require.NoError(t, err)
	on := w.stream(1)
	r, err := w.devs[0].Reserve(2*mib, vmm.ReserveOptions{})
	require.NoError(t, err)

	small, long := alloc(t, p, s, 100), alloc(t, p, s, 3*chunk)
	other, err := theirs.Alloc(on, 1000)
	require.NoError(t, err)
	for _, dev := range w.devs {
		for _, b := range []pool.Block{small, long} {
			f, err := pool.Lookup(dev, b.Ptr()+vmm.Ptr(b.Size()-1))
			require.NoError(t, err)
			require.Equal(t, b.Ptr(), f.Block.Ptr())
			require.Same(t, p, f.Pool)
			require.Equal(t, w.devs[0].Info().Ordinal, f.Device)
			require.Zero(t, f.Driver)
		}
		f, err := pool.Lookup(dev, other.Ptr())
		require.NoError(t, err)
		require.Equal(t, pool.Found{Device: w.devs[1].Info().Ordinal, Driver: theirs.Raw()}, f)
	}
	require.NoError(t, p.Free(s, small))
	f, err := pool.Lookup(w.devs[0], small.Ptr())
	require.NoError(t, err)
	require.Same(t, p, f.Pool)
	require.Zero(t, f.Block)

	for _, at := range []vmm.Ptr{0, 1} {
		_, err = pool.Lookup(w.devs[0], at)
		require.ErrorIs(t, err, vmm.ErrInvalid, "%v", at)
	}
	_, err = pool.Lookup(nil, small.Ptr())
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, p.Free(s, long))
	require.NoError(t, theirs.Free(on, other))
	closeAll(t, s, p, on, theirs, r)
	w.end()
}
