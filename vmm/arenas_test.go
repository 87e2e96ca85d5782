package vmm_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// TestNeighbours: between two ranges that lie in one reservation of the driver's are addresses that
// belong to neither.
func TestNeighbours(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, h := newRange(t, d, vmm.RangeOptions{Max: 4 * page}), newRange(t, d, vmm.RangeOptions{Max: 4 * page})
	require.Equal(t, 1, w.made("Reserve"))
	require.Equal(t, g.Ptr()+5*page, h.Ptr())
	require.NoError(t, g.Append(make([]byte, 4*page)))
	require.NoError(t, h.Append(make([]byte, 4*page)))
	for _, p := range []vmm.Ptr{g.Ptr() + 4*page, h.Ptr() - 1} {
		_, _, found := d.Lookup(p)
		require.False(t, found)
		require.ErrorIs(t, d.CopyOut(make([]byte, 1), p), vmm.ErrInvalid)
	}
	r, off, found := d.Lookup(h.Ptr() + 4*page - 1)
	require.True(t, found)
	require.EqualValues(t, 4*page-1, off)
	require.Equal(t, h.Ptr(), r.Ptr())
	require.NoError(t, g.Close())
	_, _, found = d.Lookup(h.Ptr() - 2*page)
	require.False(t, found)
	require.NoError(t, h.Close())
	w.end()
}

// TestArenaAndTheLimit: what is handed out counts, and an arena is there only where the limit has room
// for all of it.
func TestArenaAndTheLimit(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	held := func() int { return w.made("Reserve") - w.made("Free") }
	require.NoError(t, newRange(t, d, vmm.RangeOptions{Max: page}).Close())
	require.Equal(t, 1, held(), "one empty arena stays")
	old := vmm.SetAddressLimit(1 << 30)
	defer vmm.SetAddressLimit(old)
	require.Zero(t, held(), "the limit has no room for it")
	g, h := newRange(t, d, vmm.RangeOptions{Max: 1 << 28}), newRange(t, d, vmm.RangeOptions{Max: 1 << 28})
	require.Equal(t, 2, held(), "a reservation each")
	_, err := d.NewRange(vmm.RangeOptions{Max: 1 << 30})
	require.ErrorIs(t, err, vmm.ErrAddressSpace)
	require.NoError(t, g.Close())
	vmm.SetAddressLimit(old)
	i := newRange(t, d, vmm.RangeOptions{Max: page})
	require.Equal(t, 2, held())
	vmm.SetAddressLimit(1)
	require.Equal(t, 2, held(), "it is in use")
	require.NoError(t, h.Close())
	require.NoError(t, i.Close())
	require.Equal(t, 1, held())
	w.end()
	require.Zero(t, held(), "the device has closed")
}

// TestNoArenaOfTheDriver: where the driver has no addresses for an arena, a range has a reservation
// of its own; and an empty arena is given back for one that is large.
func TestNoArenaOfTheDriver(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	w.refuse("Reserve", 1, vmm.ErrAddressSpace)
	g := newRange(t, d, vmm.RangeOptions{Max: page})
	require.Equal(t, 1, w.made("Reserve"))
	require.NoError(t, g.Close())
	require.Equal(t, 1, w.made("Free"), "it is no arena")

	require.NoError(t, newRange(t, d, vmm.RangeOptions{Max: page}).Close())
	w.refuse("Reserve", 1, vmm.ErrAddressSpace)
	g = newRange(t, d, vmm.RangeOptions{Max: 1 << 38})
	require.Equal(t, 2, w.made("Free"), "the arena")
	require.NoError(t, g.Close())
	w.end()
}

// TestArenaThatIsNotFreed: Close returns the driver's error, and can be called again.
func TestArenaThatIsNotFreed(t *testing.T) {
	w := newWorld(t, 1)
	require.NoError(t, newRange(t, w.devs[0], vmm.RangeOptions{Max: page}).Close())
	w.refuse("Free", 1, errInjected)
	require.ErrorIs(t, w.devs[0].Close(), errInjected)
	require.NoError(t, newRange(t, w.devs[0], vmm.RangeOptions{Max: page}).Close())
	w.end()
}

// TestAddressesInDoubt: those of a range whose memory cannot be unmapped go to no other.
func TestAddressesInDoubt(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g := newRange(t, d, vmm.RangeOptions{Max: page})
	require.NoError(t, g.Append([]byte{1}))
	w.refuse("Unmap", 1, errInjected)
	require.ErrorIs(t, g.Close(), errInjected)
	r, _, found := d.Lookup(g.Ptr())
	require.True(t, found)
	for range 100 {
		h := newRange(t, d, vmm.RangeOptions{Max: page})
		require.NotEqual(t, g.Ptr(), h.Ptr())
		require.NoError(t, h.Close())
	}
	require.Equal(t, g.Ptr(), r.Ptr())
	require.NoError(t, g.Close())
	w.end()
}

// BenchmarkManyRanges makes 30,000 ranges and closes them, the first before the last. It reports what
// the last thousand of each took, as a multiple of the first thousand.
func BenchmarkManyRanges(b *testing.B) {
	d, err := vmm.Open("host")
	require.NoError(b, err)
	const thousands = 30
	var all [thousands * 1000]*vmm.Range
	for b.Loop() {
		var made, closed [thousands]time.Duration
		for i := range thousands {
			begun := time.Now()
			for k := range 1000 {
				all[i*1000+k], err = d.NewRange(vmm.RangeOptions{Max: 64 << 20})
				require.NoError(b, err)
			}
			made[i] = time.Since(begun)
		}
		order := rand.Perm(len(all))
		for i := range thousands {
			begun := time.Now()
			for _, k := range order[i*1000 : (i+1)*1000] {
				require.NoError(b, all[k].Close())
			}
			closed[i] = time.Since(begun)
		}
		b.ReportMetric(float64(made[0])/1e6, "us/first-NewRange")
		b.ReportMetric(float64(made[thousands-1])/float64(made[0]), "last/first-NewRange")
		b.ReportMetric(float64(closed[0])/1e6, "us/first-Close")
		b.ReportMetric(float64(closed[thousands-1])/float64(closed[0]), "last/first-Close")
	}
	require.NoError(b, d.Close())
}
