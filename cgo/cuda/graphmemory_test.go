//go:build cgo && linux

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestGraphOutlivesMemory: libcuda does not look at a graph's memory before the work runs, and then
// the device is lost. So what packages pool and ipc have allocated is remembered, and a launch is
// refused once it is freed. In the control the memory was allocated without them.
func TestGraphOutlivesMemory(t *testing.T) {
	const n = 1 << 20
	path := fakecuda.Build(t)
	fake := fakecuda.Open(t, path)
	type memory func(t *testing.T, dev *vmm.Device, s *vmm.Stream) (p vmm.Ptr, free func() error)
	for name, alloc := range map[string]memory{
		"plain": func(t *testing.T, dev *vmm.Device, _ *vmm.Stream) (vmm.Ptr, func() error) {
			m, err := ipc.Alloc(dev, n)
			require.NoError(t, err)
			return m.Ptr(), m.Close
		},
		"pool": func(t *testing.T, dev *vmm.Device, s *vmm.Stream) (vmm.Ptr, func() error) {
			p, err := pool.NewDriver(dev, pool.Options{})
			require.NoError(t, err)
			b, err := p.Alloc(s, n)
			require.NoError(t, err)
			return b.Ptr(), func() error {
				require.NoError(t, p.Free(s, b))
				return p.Close()
			}
		},
		"control": func(t *testing.T, dev *vmm.Device, _ *vmm.Stream) (vmm.Ptr, func() error) {
			raw, err := dev.Raw()
			require.NoError(t, err)
			p, err := raw.(driver.Allocator).AllocPlain(n)
			require.NoError(t, err)
			return p, func() error { return raw.(driver.Allocator).FreePlain(p) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake.Reset()
			d, err := cuda.Loaded(path)
			require.NoError(t, err)
			dev, err := vmm.OpenDriver(d, 0)
			require.NoError(t, err)
			s, err := dev.NewStream()
			require.NoError(t, err)
			p, free := alloc(t, dev, s)
			require.NoError(t, s.BeginCapture())
			require.NoError(t, s.Fill(p, 7, 1, n))
			g, err := s.EndCapture()
			require.NoError(t, err)
			x, err := g.Instantiate()
			require.NoError(t, err)
			b := make([]byte, 1)
			require.NoError(t, dev.CopyOut(b, p))
			require.Zero(t, b[0], "captured work does not run")
			require.NoError(t, x.Launch(s))
			require.NoError(t, s.Sync())
			require.NoError(t, dev.CopyOut(b, p))
			require.EqualValues(t, 7, b[0])
			require.NoError(t, free())
			err = x.Launch(s)
			if name == "control" {
				require.NoError(t, err)
				require.ErrorIs(t, s.Sync(), vmm.ErrDeviceLost)
				return
			}
			require.ErrorIs(t, err, vmm.ErrClosed)
			require.NoError(t, s.Sync())
			require.NoError(t, x.Close())
			require.NoError(t, g.Close())
			require.NoError(t, s.Close())
			require.NoError(t, dev.Close())
		})
	}
}
