package vmm_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestSegmentFreed: memory is free when the last reference here and the last descriptor
// anywhere have gone.
func TestSegmentFreed(t *testing.T) {
	g, err := vmmtest.Device(t).NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Max: 4 << 20, Chunk: 2 << 20})
	require.NoError(t, err)
	require.NoError(t, g.Grow(4<<20))
	freed := func(s vmm.Segment) bool {
		t.Helper()
		is, err := s.Freed()
		require.NoError(t, err)
		return is
	}
	kept, plain := g.Segments()[0], g.Segments()[1]
	c, err := kept.Chunk()
	require.NoError(t, err)
	fd, err := c.Export()
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "exported")
	require.NoError(t, c.Close())
	require.False(t, freed(kept))
	require.NoError(t, g.Close())
	require.False(t, freed(kept))
	require.True(t, freed(plain))
	require.NoError(t, f.Close())
	require.True(t, freed(kept))
	_, err = vmm.Segment{}.Freed()
	require.ErrorIs(t, err, vmm.ErrInvalid)
}

// withoutFreed is a driver that cannot tell.
type withoutFreed struct{ driver.Driver }

func TestSegmentFreedUnknown(t *testing.T) {
	dev, err := vmm.OpenDriver(withoutFreed{host.New(host.Config{})}, 0)
	require.NoError(t, err)
	g, err := dev.NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Max: 2 << 20})
	require.NoError(t, err)
	require.NoError(t, g.Grow(2<<20))
	_, err = g.Segments()[0].Freed()
	require.ErrorIs(t, err, vmm.ErrNotSupported)
	require.NoError(t, g.Close())
	require.NoError(t, dev.Close())
}
