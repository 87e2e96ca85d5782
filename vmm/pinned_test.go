package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// TestPinnedIsUsedAgain: what was closed is not freed before the device closes, since that waits
// for the whole device.
func TestPinnedIsUsedAgain(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	x, err := d.AllocPinned(100)
	require.NoError(t, err)
	require.Len(t, x.Bytes(), 100)
	require.EqualValues(t, 4096, d.Stats().Pinned)
	copy(x.Bytes(), "written by the CPU")
	b := make([]byte, 18)
	require.NoError(t, d.CopyOut(b, x.Ptr()))
	require.Equal(t, "written by the CPU", string(b))
	at := x.Ptr()
	big, err := d.AllocPinned(5000)
	require.NoError(t, err)
	require.EqualValues(t, 4096+8192, d.Stats().Pinned)
	require.ErrorIs(t, d.Close(), vmm.ErrBusy)
	for range 2 {
		require.NoError(t, x.Close())
		require.NoError(t, big.Close())
	}
	require.Zero(t, x.Ptr())
	require.Nil(t, x.Bytes())
	allocated := w.drv.Counts()["AllocHost"]
	again, err := d.AllocPinned(4096)
	require.NoError(t, err)
	require.Equal(t, at, again.Ptr())
	require.Equal(t, allocated, w.drv.Counts()["AllocHost"])
	require.Zero(t, w.drv.Counts()["FreeHost"])
	require.NoError(t, again.Close())
	require.EqualValues(t, 4096+8192, d.Stats().Pinned)
	w.end()
	require.Equal(t, 2, w.drv.Counts()["FreeHost"].Made)
}

func TestPinnedRefuses(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	_, err := d.AllocPinned(0)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = d.AllocPinned(1<<64 - 1)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	w.refuse("AllocHost", 1, driver.ErrOutOfMemory)
	_, err = d.AllocPinned(1)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	var none *vmm.Pinned
	require.NoError(t, none.Close())
	require.Zero(t, none.Ptr())
	require.Nil(t, none.Bytes())
	require.Nil(t, new(vmm.Pinned).Bytes())
	w.end()
	_, err = d.AllocPinned(1)
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = (*vmm.Device)(nil).AllocPinned(1)
	require.ErrorIs(t, err, vmm.ErrInvalid)
}

// TestPinnedAfterAReset: the driver has freed the memory, which must not be touched, and the device
// can be closed.
func TestPinnedAfterAReset(t *testing.T) {
	drv := host.New(host.Config{Granularity: page})
	w := worldOf(t, 1, drv, nil)
	x, err := w.devs[0].AllocPinned(8)
	require.NoError(t, err)
	require.NotNil(t, x.Bytes())
	require.NoError(t, drv.ResetContext(0))
	require.Nil(t, x.Bytes())
	require.NoError(t, x.Close())
	_, err = w.devs[0].AllocPinned(8)
	require.ErrorIs(t, err, vmm.ErrContextReset, "what was closed is not used again")
	require.NoError(t, w.devs[0].Close())
}
