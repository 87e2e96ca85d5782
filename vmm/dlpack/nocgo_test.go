//go:build !cgo || !linux

package dlpack_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/dlpack"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestWithoutC: this build has no structs of C, and nothing stays held.
func TestWithoutC(t *testing.T) {
	d := vmmtest.Device(t)
	g, err := d.NewRange(vmm.RangeOptions{Max: 4096})
	require.NoError(t, err)
	require.NoError(t, g.Append(make([]byte, 8)))
	_, err = dlpack.Export(g, 1, dlpack.Options{DType: dlpack.Int64})
	require.ErrorIs(t, err, vmm.ErrNotSupported)
	_, err = dlpack.FromDLPack(d, nil)
	require.ErrorIs(t, err, vmm.ErrNotSupported)
	require.NoError(t, g.Close())
}
