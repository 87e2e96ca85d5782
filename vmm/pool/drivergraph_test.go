package pool_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestGraphOutlivesBlock: a graph that uses a block of a driver's pool is refused once the block is
// freed, also if the next block is at its address, and is as before if the free fails.
func TestGraphOutlivesBlock(t *testing.T) {
	w := oneDevice(t, 64*mib)
	p, s := w.driverPool(pool.Options{}), w.stream(0)
	graphOf := func(at vmm.Ptr) *vmm.GraphExec {
		require.NoError(t, s.BeginCapture())
		require.NoError(t, s.Fill(at, 7, 1, mib))
		g, err := s.EndCapture()
		require.NoError(t, err)
		x, err := g.Instantiate()
		require.NoError(t, err)
		require.NoError(t, g.Close())
		return x
	}
	for name, free := range map[string]func(pool.Block) error{
		"Free":    func(b pool.Block) error { return p.Free(s, b) },
		"FreeNow": func(b pool.Block) error { require.NoError(t, s.Sync()); return p.FreeNow(b) },
	} {
		b, other := take(t, p, s, mib), take(t, p, s, mib)
		x, y := graphOf(b.Ptr()), graphOf(other.Ptr())
		require.NoError(t, x.Launch(s))
		require.NoError(t, s.BeginCapture())
		require.ErrorIs(t, p.Free(s, b), vmm.ErrCapturing)
		g, err := s.EndCapture()
		require.NoError(t, err)
		require.NoError(t, g.Close())
		require.NoError(t, x.Launch(s), "the free failed")
		require.NoError(t, free(b), name)
		require.ErrorIs(t, x.Launch(s), vmm.ErrClosed, name)
		next := take(t, p, s, mib)
		require.ErrorIs(t, x.Launch(s), vmm.ErrClosed, name)
		require.NoError(t, y.Launch(s), "the other block is there")
		require.NoError(t, s.Sync())
		require.NoError(t, p.Free(s, next))
		require.NoError(t, p.Free(s, other))
		closeAll(t, x, y)
	}
	closeAll(t, p, s)
	w.end()
}

// TestGraphOutlivesUnknownBlock is the control: of a block that was allocated without a DriverPool
// nothing is known, and the device is lost.
func TestGraphOutlivesUnknownBlock(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	p, s := w.driverPool(pool.Options{}), w.stream(0)
	raw, err := w.devs[0].Raw()
	require.NoError(t, err)
	queue, _, release, err := s.Hold()
	require.NoError(t, err)
	at, err := raw.(driver.Pooler).AllocFromPool(p.Raw(), mib, queue)
	require.NoError(t, err)
	release()
	require.NoError(t, s.BeginCapture())
	require.NoError(t, s.Fill(at, 7, 1, mib))
	g, err := s.EndCapture()
	require.NoError(t, err)
	x, err := g.Instantiate()
	require.NoError(t, err)
	require.NoError(t, raw.(driver.Allocator).FreePlain(at))
	require.NoError(t, x.Launch(s))
	require.ErrorIs(t, s.Sync(), vmm.ErrDeviceLost)
	for _, c := range []interface{ Close() error }{x, g, s, p, w.devs[0]} {
		_ = c.Close() // the device is lost
	}
}
