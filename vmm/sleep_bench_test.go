package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// BenchmarkSleepOfMany is Sleep and Wake of 64 ranges of nine pages, as of a short sequence.
func BenchmarkSleepOfMany(b *testing.B) {
	d, err := vmm.Open("host:0?page=4K")
	require.NoError(b, err)
	all := make([]*vmm.Range, 64)
	for i := range all {
		all[i], err = d.NewRange(vmm.RangeOptions{Max: 1 << 30})
		require.NoError(b, err)
		require.NoError(b, all[i].Append(make([]byte, 36<<10)))
	}
	b.ReportAllocs()
	for b.Loop() {
		require.NoError(b, vmm.Sleep(vmm.SleepKeep, all...))
		require.NoError(b, vmm.Wake(all...))
	}
	for _, g := range all {
		require.NoError(b, g.Close())
	}
	require.NoError(b, d.Close())
}
