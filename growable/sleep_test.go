package growable_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestVectorSleeps with its Range: addresses, length and elements as before.
func TestVectorSleeps(t *testing.T) {
	v := vector[row](t, vmmtest.Device(t), growable.Options{MaxLen: 1 << 20})
	want := make([]row, 5000)
	for i := range want {
		want[i] = row{ID: int64(i), Score: float32(i) / 3}
	}
	require.NoError(t, v.Append(want...))
	p, capacity := v.Ptr(), v.Cap()
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, v.Range()))
	require.Equal(t, len(want), v.Len())
	require.Zero(t, v.Cap())
	require.ErrorIs(t, v.Append(row{}), vmm.ErrAsleep)
	require.ErrorIs(t, v.Set(0, row{}), vmm.ErrAsleep)
	_, err := v.At(1)
	require.ErrorIs(t, err, vmm.ErrAsleep)
	for _, err := range v.Blocks(make([]row, 10)) {
		require.ErrorIs(t, err, vmm.ErrAsleep)
		break
	}
	require.NoError(t, vmm.Wake(v.Range()))
	require.Equal(t, p, v.Ptr())
	require.Equal(t, capacity, v.Cap())
	got := make([]row, len(want))
	_, err = v.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, v.Append(want...))

	require.NoError(t, vmm.Sleep(vmm.SleepDrop, v.Range()))
	require.Zero(t, v.Len())
	require.NoError(t, vmm.Wake(v.Range()))
	require.NoError(t, v.Append(want...))
}
