package ipc_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// graphOf is a graph that fills n bytes.
func graphOf(t *testing.T, s *vmm.Stream, at vmm.Ptr, n uint64) *vmm.GraphExec {
	t.Helper()
	require.NoError(t, s.BeginCapture())
	require.NoError(t, s.Fill(at, 7, 1, n))
	g, err := s.EndCapture()
	require.NoError(t, err)
	x, err := g.Instantiate()
	require.NoError(t, err)
	require.NoError(t, g.Close())
	t.Cleanup(func() { require.NoError(t, x.Close()) })
	return x
}

// TestGraphOutlivesPlainMemory: a graph that uses memory of Alloc is refused once that is closed, and
// is as before if the Close fails.
func TestGraphOutlivesPlainMemory(t *testing.T) {
	dev := testDriver.Device(t)
	m, err := ipc.Alloc(dev, mib)
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	defer s.Close()
	x := graphOf(t, s, m.Ptr(), mib)
	require.NoError(t, x.Launch(s))
	require.NoError(t, s.BeginCapture())
	require.ErrorIs(t, m.Close(), vmm.ErrCapturing)
	g, err := s.EndCapture()
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.NoError(t, x.Launch(s), "the Close failed")
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.ErrorIs(t, x.Launch(s), vmm.ErrClosed)
	require.NoError(t, dev.Sync())
}

// TestGraphOutlivesOpenedMemory: memory of a handle that is opened twice is there until the second
// Close. Closed once more, the first changes nothing.
func TestGraphOutlivesOpenedMemory(t *testing.T) {
	dev := vmmtest.Device(t)
	_, h, _ := remote(t, "host")
	one, err := ipc.Open(dev, h)
	require.NoError(t, err)
	two, err := ipc.Open(dev, h)
	require.NoError(t, err)
	require.Equal(t, one.Ptr(), two.Ptr())
	s, err := dev.NewStream()
	require.NoError(t, err)
	defer s.Close()
	x := graphOf(t, s, one.Ptr(), mib)
	require.NoError(t, one.Close())
	require.NoError(t, one.Close())
	require.NoError(t, x.Launch(s))
	require.NoError(t, two.Close())
	require.ErrorIs(t, x.Launch(s), vmm.ErrClosed)
	again := open(t, dev, h)
	require.ErrorIs(t, x.Launch(s), vmm.ErrClosed)
	require.NoError(t, graphOf(t, s, again.Ptr(), mib).Launch(s))
	require.NoError(t, s.Sync())
}

// TestGraphOutlivesUnknownMemory is the control: of memory that was allocated without this package
// nothing is known, and the device is lost.
func TestGraphOutlivesUnknownMemory(t *testing.T) {
	dev := vmmtest.Device(t)
	raw, err := dev.Raw()
	require.NoError(t, err)
	plain := raw.(driver.Allocator)
	at, err := plain.AllocPlain(mib)
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	defer s.Close()
	x := graphOf(t, s, at, mib)
	require.NoError(t, plain.FreePlain(at))
	require.NoError(t, x.Launch(s))
	require.ErrorIs(t, s.Sync(), vmm.ErrDeviceLost)
}

// TestGraphOutlivesImportedBlock: the memory of an imported block is there until the last Block of it
// is freed.
func TestGraphOutlivesImportedBlock(t *testing.T) {
	for _, now := range []bool{true, false} {
		dev := vmmtest.Device(t)
		_, p, token := remotePool(t, dev, "host")
		one, err := p.Import(token)
		require.NoError(t, err)
		two, err := p.Import(token)
		require.NoError(t, err)
		s, err := dev.NewStream()
		require.NoError(t, err)
		x := graphOf(t, s, one.Ptr(), one.Size())
		free := func(b *ipc.Block) error {
			if now {
				return b.FreeNow()
			}
			return b.Free(s)
		}
		require.NoError(t, free(one))
		require.NoError(t, x.Launch(s))
		require.NoError(t, s.Sync())
		require.NoError(t, free(two))
		require.ErrorIs(t, x.Launch(s), vmm.ErrClosed)
		require.NoError(t, s.Sync())
		require.NoError(t, s.Close())
	}
}
