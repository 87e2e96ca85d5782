//go:build cgo && linux

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/internal/second"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// TestPitchIsCUDAs compares Pitch with what cuMemAllocPitch chooses.
func TestPitchIsCUDAs(t *testing.T) {
	drv := device(t)
	dev, err := drv.Open(0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	other, err := second.Open(libcuda, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	for _, width := range []uint64{1, 4, 100, 508, 511, 512, 513, 3000, 3072, 4096, 5000, 65535, 100_000, 1_000_001} {
		got, err := dev.(driver.Copier2D).Pitch(width)
		require.NoError(t, err)
		for _, element := range []int{4, 8, 16} {
			want, err := other.AllocPitch(width, element)
			require.NoError(t, err)
			require.Equal(t, want, got, "rows of %d bytes with elements of %d", width, element)
		}
	}
}
