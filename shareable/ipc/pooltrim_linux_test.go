package ipc_test

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

func TestImportedTrim(t *testing.T) {
	w := newWorld(t)
	b, token := w.block(5)
	require.NoError(t, w.in.SetReleaseThreshold(math.MaxUint64))
	kept, err := w.in.ReleaseThreshold()
	require.NoError(t, err)
	require.Equal(t, uint64(math.MaxUint64), kept)
	kept, err = w.own.ReleaseThreshold()
	require.NoError(t, err)
	require.Zero(t, kept)

	i := w.imports(token)
	freed, err := w.in.TrimTo(0)
	require.NoError(t, err)
	require.Zero(t, freed, "it is in use")
	for range 20 {
		require.NoError(t, w.s.Fill(i.Ptr(), 5, 1, mib))
	}
	require.NoError(t, i.Free(w.s))
	freed, err = w.in.TrimTo(0)
	require.NoError(t, err)
	require.Contains(t, []uint64{0, mib}, freed, "what the stream has done by then")
	require.NoError(t, w.s.Sync())
	freed, err = w.in.TrimTo(0)
	require.NoError(t, err)
	require.Zero(t, freed, "it went with the wait")
	require.Equal(t, byte(5), first(t, w.devs[0], b.Ptr()))
	require.NoError(t, w.own.FreeNow(b))
}

// TestExportedPoolReleasesMemory: after a Sync and after a trim, before the pool is exported, after
// that, and with a block that is exported, as any pool does.
func TestExportedPoolReleasesMemory(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		dev, size := d.Device(t), uint64(16*mib)
		if d.Name == "cuda" {
			size = 256 * mib
		}
		own, err := pool.NewDriver(dev, pool.Options{Share: vmm.ShareFD})
		require.NoError(t, err)
		s, err := dev.NewStream()
		require.NoError(t, err)
		reserved := func() uint64 {
			st, err := own.Stats()
			require.NoError(t, err)
			return st.Reserved
		}
		trims := func(when string) {
			t.Helper()
			_, err := own.TrimTo(0)
			require.NoError(t, err)
			base := reserved()
			for _, threshold := range []uint64{0, math.MaxUint64} {
				require.NoError(t, own.SetReleaseThreshold(threshold))
				b, err := own.Alloc(s, size)
				require.NoError(t, err)
				require.NoError(t, s.Fill(b.Ptr(), 1, 1, size))
				used := reserved()
				require.GreaterOrEqual(t, used, size)
				require.NoError(t, own.Free(s, b))
				require.NoError(t, s.Sync())
				synced := reserved()
				freed, err := own.TrimTo(0)
				require.NoError(t, err)
				left := reserved()
				t.Logf("%s, threshold %#x: reserved %d at first, %d with a block, %d after its free and a Sync, %d after a trim that freed %d",
					when, threshold, base, used, synced, left, freed)
				require.Equal(t, synced-left, freed)
				require.Equal(t, base, left)
				require.Equal(t, threshold != 0, synced == used)
				require.Equal(t, threshold == 0, synced == base)
			}
		}
		trims("before the export")
		fd, err := ipc.ExportPool(own)
		require.NoError(t, err)
		f := os.NewFile(uintptr(fd), "pool")
		trims("exported")
		kept, err := own.Alloc(s, mib)
		require.NoError(t, err)
		_, err = ipc.ExportPointer(own, kept)
		require.NoError(t, err)
		trims("with an exported block")
		require.NoError(t, own.FreeNow(kept))
		trims("that block is freed")
		require.NoError(t, f.Close())
		trims("the descriptor is closed")
		require.NoError(t, s.Close())
		require.NoError(t, own.Close())
	})
}
