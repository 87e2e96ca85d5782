package pool_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// lose loses the device by a kernel that faults.
func lose(t *testing.T, s *vmm.Stream) {
	t.Helper()
	m, _, err := s.Device().LoadModule(vmm.Code{Image: []byte("// params fault\n.visible .entry fault()"),
		Host: map[string]driver.HostKernel{"fault": {Run: func(*driver.Launch) error { return errInjected }}}})
	require.NoError(t, err)
	f, err := m.Function("fault")
	require.NoError(t, err)
	require.NoError(t, f.Launch(s, &vmm.Launch{}, nil))
	require.ErrorIs(t, s.Sync(), vmm.ErrDeviceLost)
	_ = m.Close()
}

// TestLostDevice: blocks can be given up, and Close gives back everything and returns why.
func TestLostDevice(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s, other := w.pool(pool.Options{}), w.stream(0), w.stream(0)
	all, freed := blocks(t, p, s), blocks(t, p, other)
	for _, b := range freed {
		require.NoError(t, p.Free(other, b))
	}
	lose(t, s)
	for _, n := range []uint64{100, 70 * kib, 5 * chunk, 100 * chunk} {
		b, err := p.Alloc(s, n)
		if err == nil {
			err = p.FreeNow(b)
		} else {
			require.ErrorIs(t, err, vmm.ErrDeviceLost)
			err = nil
		}
		require.NoError(t, err)
	}
	_, _ = p.TrimTo(0)
	require.NoError(t, pool.Check(p))
	require.ErrorIs(t, s.Close(), vmm.ErrDeviceLost)
	require.ErrorIs(t, other.Close(), vmm.ErrDeviceLost)
	require.ErrorIs(t, p.Close(), vmm.ErrBusy)
	for _, b := range all {
		require.NoError(t, p.FreeNow(b))
	}
	if err := p.Close(); err != nil {
		require.ErrorIs(t, err, vmm.ErrDeviceLost)
	}
	require.Zero(t, statsOf(t, p).Reserved)
	require.NoError(t, p.Close())
	require.NoError(t, w.devs[0].Close())
	require.Zero(t, w.devs[0].Stats().Committed)
}
