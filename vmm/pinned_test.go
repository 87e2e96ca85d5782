package vmm_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
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

// TestPinnedThatIsNotFreed: where the driver refuses to free memory as the device closes, the next
// Close frees what is left.
func TestPinnedThatIsNotFreed(t *testing.T) {
	for k := range 4 {
		w := newWorld(t, 1)
		d := w.devs[0]
		for _, n := range []uint64{1, 1, 4097, 1 << 20} {
			x, err := d.AllocPinned(n)
			require.NoError(t, err)
			require.NoError(t, x.Close())
		}
		w.refuse("FreeHost", k, driver.ErrInvalid)
		for range k {
			require.ErrorIs(t, d.Close(), driver.ErrInvalid)
			again, err := d.AllocPinned(1 << 21) // the device is open
			require.NoError(t, err)
			require.NoError(t, again.Close())
		}
		w.end()
		require.Zero(t, d.Stats().Pinned)
	}
}

// TestPinnedStatsDoNotWait for the driver, which can take long to allocate and to free.
func TestPinnedStatsDoNotWait(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	asked := 0
	w.before = func(c drivertest.Call) error {
		if c.Name == "AllocHost" || c.Name == "FreeHost" {
			asked++
			_ = d.Stats()
		}
		return nil
	}
	x, err := d.AllocPinned(1)
	require.NoError(t, err)
	require.NoError(t, x.Close())
	w.end()
	require.Equal(t, 2, asked)
}

// TestPinnedAtOnce: Close while others read, device Close while others allocate, and a reset.
func TestPinnedAtOnce(t *testing.T) {
	for round := range 50 {
		drv := host.New(host.Config{Granularity: page})
		w := worldOf(t, 1, drv, nil)
		d := w.devs[0]
		var wg sync.WaitGroup
		x, err := d.AllocPinned(8)
		require.NoError(t, err)
		for range 2 {
			wg.Go(func() { _ = x.Close() })
			wg.Go(func() {
				for range 10 {
					_, _ = x.Ptr(), x.Bytes()
					_ = d.Stats()
				}
			})
			wg.Go(func() {
				for range 10 {
					if y, err := d.AllocPinned(100); err == nil {
						_ = y.Close()
					}
				}
			})
		}
		wg.Go(func() { _ = d.Close() })
		if round%3 == 0 {
			wg.Go(func() { _ = drv.ResetContext(0) })
		}
		wg.Wait()
		require.NoError(t, x.Close())
		require.NoError(t, d.Close())
		require.Zero(t, d.Stats().Pinned)
	}
}
