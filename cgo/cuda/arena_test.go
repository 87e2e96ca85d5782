//go:build cgo && linux

package cuda_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// inAnArena does with a range, of which others lie before and behind it in one reservation of the
// driver's, what other libraries, graphs and processes do.
func inAnArena(t *testing.T, v *rivals) {
	d, size := v.dev, 2*v.gran
	var all [3]*vmm.Range
	for i := range all {
		var err error
		all[i], err = d.NewRange(vmm.RangeOptions{Max: size, Share: vmm.ShareFD})
		require.NoError(t, err)
		require.NoError(t, all[i].Append(bytes.Repeat([]byte{byte(i + 1)}, int(size))))
	}
	g := all[1]
	require.Equal(t, []vmm.Ptr{vmm.Ptr(size + v.gran), vmm.Ptr(size + v.gran)},
		[]vmm.Ptr{g.Ptr() - all[0].Ptr(), all[2].Ptr() - g.Ptr()}, "neighbours, with a granule between them")

	_, off, found := d.Lookup(g.Ptr() + vmm.Ptr(size) - 1)
	require.True(t, found)
	require.Equal(t, size-1, off)
	_, _, found = d.Lookup(g.Ptr() - 1)
	require.False(t, found)
	arena, err := v.loop.RangeStart(uint64(all[0].Ptr()))
	require.NoError(t, err)
	require.LessOrEqual(t, arena, uint64(all[0].Ptr()))
	for _, p := range []vmm.Ptr{g.Ptr(), g.Ptr() + vmm.Ptr(size) - 1, all[2].Ptr()} {
		at, err := v.loop.RangeStart(uint64(p))
		require.NoError(t, err)
		require.Equal(t, arena, at, "the driver names what was reserved")
	}
	_, err = v.loop.RangeStart(uint64(g.Ptr()) + size)
	require.Error(t, err, "the gap belongs to no one")

	if err := d.Supports(vmm.FeatureDMABuf); err == nil {
		fd, err := g.ExportDMABuf(0, size)
		require.NoError(t, err)
		require.NoError(t, os.NewFile(uintptr(fd), "dma-buf").Close())
	} else {
		require.ErrorIs(t, err, vmm.ErrNotSupported)
		t.Log("without dma-buf: ", err)
	}

	s, err := d.NewStream()
	require.NoError(t, err)
	require.NoError(t, s.BeginCapture())
	require.NoError(t, s.Fill(g.Ptr(), 9, 1, size))
	graph, err := s.EndCapture()
	require.NoError(t, err)
	x, err := graph.Instantiate()
	require.NoError(t, err)
	require.NoError(t, all[0].Close())
	require.NoError(t, x.Launch(s))
	require.NoError(t, s.Sync())
	got := make([]byte, size)
	for i, want := range map[int]byte{1: 9, 2: 3} {
		require.NoError(t, d.CopyOut(got, all[i].Ptr()))
		require.Equal(t, bytes.Repeat([]byte{want}, int(size)), got)
	}
	require.NoError(t, x.Close())
	require.NoError(t, graph.Close())
	require.NoError(t, s.Close())

	// Another address for the same memory, as in another process.
	chunk, err := d.Create(v.gran, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	fd, err := chunk.Export()
	require.NoError(t, err)
	again, err := d.Import(fd, v.gran, vmm.Prop{})
	require.NoError(t, err)
	require.NoError(t, os.NewFile(uintptr(fd), "chunk").Close())
	r, err := d.Reserve(2*v.gran, vmm.ReserveOptions{})
	require.NoError(t, err)
	require.NoError(t, r.Map(0, chunk))
	require.NoError(t, r.Map(v.gran, again))
	require.NoError(t, d.CopyIn(r.Ptr(), []byte("shared")))
	require.NoError(t, d.CopyOut(got[:6], r.Ptr()+vmm.Ptr(v.gran)))
	require.Equal(t, "shared", string(got[:6]))
	require.NoError(t, r.Close())
	require.NoError(t, chunk.Close())
	require.NoError(t, again.Close())
	require.NoError(t, g.Close())
	require.NoError(t, all[2].Close())
}

func TestInAnArena(t *testing.T) { inAnArena(t, newRivals(t, device(t), libcuda)) }

func TestInAnArenaOnFake(t *testing.T) {
	v, _ := rivalsOnFake(t)
	inAnArena(t, v)
}
