//go:build cgo

package dlpack_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/dlpack/consumer"
	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/dlpack"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// DLPack's numbers of device types.
const (
	cpu      = 1
	cuda     = 2
	cudaHost = 3
)

// TestDevices: memory of a GPU, of the host, and pinned memory are told apart; a GPU's tensor comes back as memory that
// can be copied; many exports leave nothing.
func TestDevices(t *testing.T) {
	for _, of := range vmmtest.Drivers() {
		t.Run(of.Name, func(t *testing.T) {
			d := of.Device(t)
			own, pinned := int32(cpu), int32(cpu)
			if of.Name == "cuda" {
				own, pinned = cuda, cudaHost
			}
			v, err := growable.New[float32](d, growable.Options{MaxLen: 1 << 20})
			require.NoError(t, err)
			require.NoError(t, v.Append(make([]float32, 1000)...))
			requireType := func(p consumer.Pointer, want int32) {
				t.Helper()
				got := consumer.Read(p, true)
				require.Equal(t, want, got.Type)
				require.Zero(t, got.ID, "the first of its type")
				remove(t, true, p)
			}
			requireType(export(t, v, 1000, dlpack.Options{}), own)
			for most, want := range map[uint64]int32{0: cpu, 1 << 16: pinned} {
				m, err := d.NewMirror(v.Ptr(), 4000, vmm.MirrorOptions{Init: true, MaxPinned: most})
				require.NoError(t, err)
				x, err := dlpack.ExportMirror(m, 1000, dlpack.Options{DType: dlpack.Float32})
				require.NoError(t, err)
				p, err := x.HandOver()
				require.NoError(t, err)
				require.Zero(t, consumer.Sum(p, true, 2))
				requireType(p, want)
				require.NoError(t, m.Close())
			}
			all, err := pool.New(d, pool.Options{Max: 1 << 26})
			require.NoError(t, err)
			s, err := d.NewStream()
			require.NoError(t, err)
			b, err := all.Alloc(s, 4096)
			require.NoError(t, err)
			requireType(export(t, b, 4096, dlpack.Options{DType: dlpack.Uint8}), own)

			f, err := dlpack.FromDLPack(d, export(t, v, 1000, dlpack.Options{After: []*vmm.Stream{s}}))
			require.NoError(t, err)
			require.NoError(t, s.Copy(b.Ptr(), f.Ptr(), 4000))
			require.NoError(t, s.Sync())
			require.NoError(t, f.Close())
			nothingOpen(t)

			for range testgate.Effort(100, 100_000, 100_000) {
				x, err := dlpack.Export(v, 1000, dlpack.Options{})
				require.NoError(t, err)
				require.NoError(t, x.Close())
			}
			nothingOpen(t)
			require.NoError(t, all.Free(s, b))
			require.NoError(t, s.Close())
			require.NoError(t, all.Close())
			require.NoError(t, v.Close())
		})
	}
}
