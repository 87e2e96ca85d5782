package ipc_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestPlainMemoryCountsWhatIsTaken: plain memory counts by whole pieces of the granularity, in which the driver takes it.
func TestPlainMemoryCountsWhatIsTaken(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		dev := d.Device(t)
		gran, err := dev.Driver().Granularity(vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice, ID: dev.Info().Ordinal}})
		require.NoError(t, err)
		for n, taken := range map[uint64]uint64{1: gran, gran: gran, gran + 1: 2 * gran} {
			before, _ := inside.VMM.Created(dev)
			m := alloc(t, dev, n)
			after, _ := inside.VMM.Created(dev)
			require.Equal(t, taken, after-before, "of %d bytes", n)
			require.NoError(t, m.Close())
			after, _ = inside.VMM.Created(dev)
			require.Equal(t, before, after)
		}
	})
}
