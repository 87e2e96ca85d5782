package kernel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

func saxpy(n uint64, a float32, x, y []float32) {
	for i := range n {
		y[i] += a * x[i]
	}
}

func TestLaunch(t *testing.T) {
	dev, err := vmm.Open("host")
	require.NoError(t, err)
	defer dev.Close()
	x, err := growable.New[float32](dev, growable.Options{})
	require.NoError(t, err)
	defer x.Close()
	y, err := growable.New[float32](dev, growable.Options{})
	require.NoError(t, err)
	defer y.Close()
	require.NoError(t, x.Append(1, 2, 3))
	require.NoError(t, y.Append(10, 20, 30))
	m, err := kernel.Load(dev, kernel.Code{Host: kernel.Host{"saxpy": saxpy}})
	require.NoError(t, err)
	defer m.Close()
	f, err := m.Func("saxpy")
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, f.Launch(s, kernel.Over(3, 256), uint64(3), float32(2), kernel.Read(x), y))
	require.NoError(t, s.Sync())
	got, err := y.Host()
	require.NoError(t, err)
	require.Equal(t, []float32{12, 24, 36}, got)
}
