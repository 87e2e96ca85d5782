package growable_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestSlicesCostNoAllocation: of the caller's, on the way in and out.
func TestSlicesCostNoAllocation(t *testing.T) {
	d, err := vmm.OpenDriver(nulldriver.New(), 0)
	require.NoError(t, err)
	v, err := growable.New[int32](d, growable.Options{MaxLen: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, v.Grow(1<<20))
	w := growable.NewWriter(v, 1<<10)
	s := make([]int32, 3)
	allocations := func(f func() error) float64 {
		return testing.AllocsPerRun(1000, func() {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		})
	}
	require.Zero(t, allocations(func() error { return v.Append(s...) }))
	require.Zero(t, allocations(func() error { _, err := v.WriteAt(s, 1); return err }))
	if !invariants.Enabled { // make race: the locks that check their order allocate
		require.Zero(t, allocations(func() error { _, err := v.ReadAt(s, 1); return err }))
	}
	require.Zero(t, allocations(func() error { return w.Append(7) }))
	require.EqualValues(t, 1, allocations(func() error { return v.Append(7) }), "the documentation says so")
	require.NoError(t, v.Close())
	require.NoError(t, d.Close())
}

// BenchmarkBooks is what one element costs where the driver's calls cost nothing.
func BenchmarkBooks(b *testing.B) {
	d, err := vmm.OpenDriver(nulldriver.New(), 0)
	require.NoError(b, err)
	defer d.Close()
	const size = 1 << 20
	v, err := growable.New[int32](d, growable.Options{MaxLen: size})
	require.NoError(b, err)
	defer v.Close()
	require.NoError(b, v.Grow(size))
	require.NoError(b, v.SetLen(1))
	empty := func(b *testing.B) {
		if v.Len() == size {
			require.NoError(b, v.SetLen(1))
		}
	}
	run := func(name string, f func(b *testing.B) error) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := f(b); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	one := make([]int32, 1)
	run("Append", func(b *testing.B) error { empty(b); return v.Append(7) })
	run("Append/slice", func(b *testing.B) error { empty(b); return v.Append(one...) })
	run("ReadAt", func(*testing.B) error { _, err := v.ReadAt(one, 0); return err })
	run("WriteAt", func(*testing.B) error { _, err := v.WriteAt(one, 0); return err })
	run("At", func(*testing.B) error { _, err := v.At(0); return err })
	run("Set", func(*testing.B) error { return v.Set(0, 7) })
	const buffer = 1 << 10
	w := growable.NewWriter(v, buffer)
	run("Writer.Append", func(b *testing.B) error {
		if w.Buffered() == buffer && v.Cap()-v.Len() < buffer {
			require.NoError(b, v.SetLen(1))
		}
		return w.Append(7)
	})
}
