//go:build cgo && linux

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestCopiesOfEmbeddedBytes: bytes in a struct beside a pointer can be copied. cgo must
// not look for pointers in the rest of the struct.
func TestCopiesOfEmbeddedBytes(t *testing.T) {
	d, err := cuda.Loaded(fakecuda.Build(t))
	require.NoError(t, err)
	dev, err := vmm.OpenDriver(d, 0)
	require.NoError(t, err)
	g, err := dev.NewRange(vmm.RangeOptions{Max: 2 << 20})
	require.NoError(t, err)
	node := &struct {
		next *int
		data [64]byte
	}{next: new(int)}
	node.data[5] = 7
	require.NoError(t, g.Append(node.data[:]))
	node.data[5] = 0
	_, err = g.ReadAt(node.data[:], 0)
	require.NoError(t, err)
	require.EqualValues(t, 7, node.data[5])
	require.NoError(t, g.Close())
	require.NoError(t, dev.Close())
}
