package kernel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// BenchmarkLaunch is what the library adds to the driver's launch: of a bound kernel with
// no, one and two vectors among its arguments.
func BenchmarkLaunch(b *testing.B) {
	dev, err := vmm.OpenDriver(nulldriver.New(), 0)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, dev.Close()) })
	x, err := growable.New[float32](dev, growable.Options{})
	ends(b, x, err)
	y, err := growable.New[float32](dev, growable.Options{})
	ends(b, y, err)
	require.NoError(b, x.Append(1))
	require.NoError(b, y.Append(1))
	m, err := kernel.Load(dev, kernel.Code{Host: kernel.Host{
		"none": func(uint64) {}, "one": func([]float32) {}, "two": func([]float32, []float32) {},
	}})
	ends(b, m, err)
	s := stream(b, dev)
	for _, c := range []struct {
		name string
		args []any
	}{
		{"none", []any{uint64(1)}},
		{"one", []any{x}},
		{"two", []any{kernel.Read(x), y}},
	} {
		b.Run("vectors="+c.name, func(b *testing.B) {
			bound, err := function(b, m, c.name).Bind(kernel.Over(1, 1), c.args...)
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				if err := bound.Launch(s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
