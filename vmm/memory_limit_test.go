package vmm_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// TestLimit bounds all Devices of the process on an ordinal together, exactly.
func TestLimit(t *testing.T) {
	w := newWorld(t, 2)
	d := w.devs[0]
	again, err := vmm.OpenDriver(w.drv, 0)
	require.NoError(t, err)
	require.Zero(t, d.SetLimit(10*page))
	require.EqualValues(t, 10*page, again.Stats().Limit)
	require.Zero(t, w.devs[1].Stats().Limit, "each ordinal has its own")

	a, err := d.Create(6*page, vmm.Prop{})
	require.NoError(t, err)
	calls := w.made("Create")
	_, err = again.Create(5*page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, "limit")
	require.Equal(t, calls, w.made("Create"), "the driver was not called")
	b, err := again.Create(4*page, vmm.Prop{})
	require.NoError(t, err)
	other, err := w.devs[1].Create(20*page, vmm.Prop{})
	require.NoError(t, err)

	// What the driver refuses is not charged.
	require.NoError(t, b.Close())
	for range 3 {
		w.refuse("Create", 1, errInjected)
		_, err = again.Create(4*page, vmm.Prop{})
		require.ErrorIs(t, err, errInjected)
	}
	b, err = again.Create(4*page, vmm.Prop{})
	require.NoError(t, err)
	_, err = d.Create(page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)

	require.EqualValues(t, 10*page, again.SetLimit(5*page), "below what there is")
	require.NoError(t, b.Close())
	_, err = d.Create(page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.NoError(t, a.Close())
	a, err = d.Create(5*page, vmm.Prop{})
	require.NoError(t, err)
	require.EqualValues(t, 5*page, d.SetLimit(0))
	b, err = d.Create(50*page, vmm.Prop{})
	require.NoError(t, err)
	for _, c := range []*vmm.Chunk{a, b, other} {
		require.NoError(t, c.Close())
	}
	require.NoError(t, again.Close())
	w.end()
}

// TestLimitReleasesKeptMemory, and a growth that cannot have a quarter on top grows by what
// it needs.
func TestLimitReleasesKeptMemory(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	again, err := vmm.OpenDriver(w.drv, 0)
	require.NoError(t, err)
	d.SetLimit(16 * page)
	d.SetReleaseThreshold(100 * page)
	keepChunks(t, w, 8, 8)
	g := newRange(t, again, vmm.RangeOptions{Max: 64 * page})
	require.NoError(t, g.Append(pattern(15*page, 1)))
	require.Zero(t, d.Stats().Cached)
	require.NoError(t, g.Append(pattern(page, 2)), "the last page, with no quarter on top")
	require.EqualValues(t, 16*page, g.Cap())
	err = g.Append([]byte{1})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.EqualValues(t, 16*page, g.Len())

	// Imported memory does not count, and a range that sleeps has none.
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	c, err := d.Create(16*page, vmm.Prop{})
	require.NoError(t, err)
	require.ErrorIs(t, vmm.Wake(g), vmm.ErrOutOfMemory)
	require.NoError(t, c.Close())
	require.EqualValues(t, 16*page, d.Stats().Cached)
	require.NoError(t, vmm.Wake(g))
	require.Zero(t, d.Stats().Cached)
	require.NoError(t, g.Close())
	require.NoError(t, again.Close())
	w.end()
}

func TestImportedMemoryIsNotLimited(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetLimit(2 * page)
	c, err := d.Create(2*page, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	fd, err := c.Export()
	require.NoError(t, err)
	in, err := d.Import(fd, 2*page, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	require.NoError(t, os.NewFile(uintptr(fd), "chunk").Close())
	require.NoError(t, in.Close())
	require.NoError(t, c.Close())
	c, err = d.Create(2*page, vmm.Prop{})
	require.NoError(t, err, "neither charged nor discharged")
	_, err = d.Create(page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.NoError(t, c.Close())
	require.Equal(t, d.Stats().Creates, d.Stats().Releases, "imported memory is in neither")
	w.end()
}
