package vmm_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// The properties of a chunk are what the driver says. The location of an imported one is that of
// its memory, not the device that imported it. If the driver cannot say it, the handle is released.
func TestChunkProperties(t *testing.T) {
	errUnknown := errors.New("unknown location")
	failing := false
	drv := drivertest.Inject(host.New(host.Config{Devices: 2, Memory: 1 << 28}), func(c drivertest.Call) error {
		if failing && c.Name == "Properties" {
			return errUnknown
		}
		return nil
	})
	var devs [2]*vmm.Device
	for i := range devs {
		d, err := vmm.OpenDriver(drv, i)
		require.NoError(t, err)
		devs[i] = d
	}
	const size = 2 << 20
	c, err := devs[1].Create(size, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	fd, err := c.Export()
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "exported")

	imported, err := devs[0].Import(fd, size, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	p, err := imported.Properties()
	require.NoError(t, err)
	require.Equal(t, vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice, ID: 1}}, p)
	p, err = c.Properties()
	require.NoError(t, err)
	require.Equal(t, vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice, ID: 1}, Share: vmm.ShareFD}, p)
	require.NoError(t, imported.Close())

	failing = true
	_, err = devs[0].Import(fd, size, vmm.Prop{Share: vmm.ShareFD})
	require.ErrorIs(t, err, errUnknown)
	_, err = c.Properties()
	require.ErrorIs(t, err, errUnknown)
	failing = false

	require.NoError(t, f.Close())
	require.NoError(t, c.Close())
	_, err = c.Properties()
	require.ErrorIs(t, err, vmm.ErrClosed)
	for _, d := range devs {
		require.NoError(t, d.Close())
	}
	require.NoError(t, drv.Balanced())
}
