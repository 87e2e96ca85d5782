//go:build cgo && linux

package vmm_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestDMABufKeepsPages: when the range clips, sleeps or closes, memory that a network card
// uses is not free. It is when the descriptor is closed.
func TestDMABufKeepsPages(t *testing.T) {
	const granule = 2 << 20
	path := fakecuda.Build(t)
	fake := fakecuda.Open(t, path)
	drv, err := cuda.Load(path)
	require.NoError(t, err)
	for name, giveBack := range map[string]func(g *vmm.Range) error{
		"Clip": func(g *vmm.Range) error {
			if err := g.SetLen(0); err != nil {
				return err
			}
			return g.Clip()
		},
		"Sleep": func(g *vmm.Range) error { return vmm.Sleep(vmm.SleepDrop, g) },
		"Close": func(g *vmm.Range) error { return g.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			d, err := vmm.OpenDriver(drv, 0)
			require.NoError(t, err)
			d.SetReleaseThreshold(1 << 30)
			free := func() uint64 {
				n, _, err := d.MemInfo()
				require.NoError(t, err)
				return n
			}
			none := free()
			g, err := d.NewRange(vmm.RangeOptions{Max: 8 * granule, Chunk: granule, Share: vmm.ShareFD})
			require.NoError(t, err)
			require.NoError(t, g.Grow(4*granule))
			require.NoError(t, g.SetLen(4*granule))
			fd, err := g.ExportDMABuf(granule, 2*granule) // from the middle, two chunks
			require.NoError(t, err)

			require.NoError(t, giveBack(g))
			require.Zero(t, d.Stats().Cached, "no other range may get what a card still reads")
			require.Equal(t, none-2*granule, free())
			require.NoError(t, os.NewFile(uintptr(fd), "dma-buf").Close())
			require.Equal(t, none, free())
			require.NoError(t, g.Close())
			require.NoError(t, d.Close())
		})
	}
	fake.Clean()
}
