package vmm_test

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// cycle opens a device, uses every ability and closes it: contract 3.
func cycle(t testing.TB, w *world) {
	d, err := vmm.OpenDriver(w.drv, 0)
	require.NoError(t, err)
	peer, err := vmm.OpenDriver(w.drv, 1)
	require.NoError(t, err)

	g, err := d.NewRange(vmm.RangeOptions{Max: 64 * page, Share: vmm.ShareFD})
	require.NoError(t, err)
	require.NoError(t, g.Append(pattern(9*page+5, 1)))
	require.NoError(t, g.Grant(vmm.AccessRead, peer))
	require.NoError(t, g.Grow(9*page))
	require.NoError(t, g.SetLen(page))
	require.NoError(t, g.Clip())
	_, err = g.ReadAt(make([]byte, page), 0)
	require.NoError(t, err)

	s, err := d.NewStream()
	require.NoError(t, err)
	require.NoError(t, g.UsedBy(s))
	require.NoError(t, s.Fill(g.Ptr(), 5, 1, page))
	e, err := s.Record()
	require.NoError(t, err)
	require.NoError(t, e.Sync())
	require.NoError(t, e.Close())
	require.NoError(t, g.SetLen(0))
	require.NoError(t, g.Clip())
	require.NoError(t, g.Append(pattern(page, 2)))

	c, err := g.Segments()[0].Chunk()
	require.NoError(t, err)
	fd, err := c.Export()
	require.NoError(t, err)
	in, err := peer.Import(fd, c.Size(), vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	require.NoError(t, os.NewFile(uintptr(fd), "chunk").Close())
	r, err := peer.Reserve(in.Size(), vmm.ReserveOptions{ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, r.Map(0, in))
	got := make([]byte, page)
	require.NoError(t, peer.CopyOut(got, r.Ptr()))
	require.Equal(t, pattern(page, 2), got)
	require.ErrorIs(t, peer.CopyIn(r.Ptr(), got), vmm.ErrPermission, "read-only")
	require.NoError(t, in.Close())
	require.NoError(t, c.Close())
	require.NoError(t, r.Close())

	a, err := d.Alloc(3 * page)
	require.NoError(t, err)
	require.NoError(t, a.Close())
	growth(t, d, peer, s)
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	require.NoError(t, d.Close())
	require.NoError(t, peer.Close())
}

// growth is the part of a cycle that keeps memory, looks ahead, defers clips, and sleeps.
func growth(t testing.TB, d, peer *vmm.Device, s *vmm.Stream) {
	d.SetReleaseThreshold(8 * page)
	d.SetLimit(64 * page)
	h := newRange(t, d, vmm.RangeOptions{Max: 32 * page, GrowAhead: 4 * page})
	require.NoError(t, h.Grant(vmm.AccessRead, peer))
	require.NoError(t, h.UsedBy(s))
	open := gate(t, d, s.Raw())
	for n := range 4 {
		require.NoError(t, h.Append(pattern(3*page, 1)))
		require.NoError(t, h.SetLen(page))
		require.NoError(t, h.Clip(), "it does not wait")
		if n == 2 {
			open()
		}
	}
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, h))
	require.NoError(t, vmm.Wake(h))
	require.NoError(t, vmm.Sleep(vmm.SleepDrop, h))
	require.NoError(t, vmm.Wake(h))
	require.NoError(t, h.Append(pattern(page, 2)))
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, h))
	_, err := d.Trim(2 * page)
	require.NoError(t, err)
	require.NoError(t, h.Close())
}

func TestNothingDrifts(t *testing.T) {
	w := newWorld(t, 2)
	cycle(t, w)
	fds, maps, routines := resources(t)
	free, _, err := w.devs[0].MemInfo()
	require.NoError(t, err)
	for range 200 {
		cycle(t, w)
	}
	nowFDs, nowMaps, nowRoutines := resources(t)
	require.LessOrEqual(t, nowFDs, fds, "file descriptors")
	require.LessOrEqual(t, nowMaps, maps, "mappings of memory files")
	require.LessOrEqual(t, nowRoutines, routines, "goroutines")
	now, _, err := w.devs[0].MemInfo()
	require.NoError(t, err)
	require.Equal(t, free, now, "device memory")
	w.devs[0].SetLimit(0)
	require.Zero(t, w.devs[0].Stats().Committed)
	w.end()
}

// resources counts the process's descriptors and mappings.
func resources(t testing.TB) (fds, maps, routines int) {
	t.Helper()
	runtime.GC()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return len(list), strings.Count(string(b), "memfd"), runtime.NumGoroutine()
}

// TestAThousandRanges: each with a Max of its own, all alive at once.
func TestAThousandRanges(t *testing.T) {
	w := worldOn(t, 1, host.Config{Memory: 8 << 30})
	var all []*vmm.Range
	seen := map[vmm.Ptr]bool{}
	for i := range 1000 {
		g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: uint64(i+1) << 26})
		require.NoError(t, err)
		require.NoError(t, g.Append([]byte{byte(i), byte(i >> 8)}))
		require.False(t, seen[g.Ptr()])
		seen[g.Ptr()] = true
		all = append(all, g)
	}
	for i, g := range all {
		b := make([]byte, 2)
		_, err := g.ReadAt(b, 0)
		require.NoError(t, err)
		require.Equal(t, []byte{byte(i), byte(i >> 8)}, b)
	}
	require.EqualValues(t, 1000*2*mib, w.devs[0].Stats().Committed)
	for _, g := range all {
		require.NoError(t, g.Close())
	}
	w.end()
}

// TestAddressesRunOut: the error is not ErrOutOfMemory, and the process, Go's own heap
// included, goes on.
func TestAddressesRunOut(t *testing.T) {
	w := worldOn(t, 1, host.Config{Memory: 1 << 30})
	d := w.devs[0]
	var all []*vmm.Reservation
	var err error
	for size := uint64(1 << 42); size >= 2*mib; size /= 2 {
		for err = nil; err == nil; {
			var r *vmm.Reservation
			if r, err = d.Reserve(size, vmm.ReserveOptions{}); err == nil {
				all = append(all, r)
			}
		}
		require.ErrorIs(t, err, vmm.ErrAddressSpace)
	}
	require.NotErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, "smaller Max")
	require.Equal(t, uint64(1<<46), d.Stats().AddressLimit)

	_, err = d.NewRange(vmm.RangeOptions{Max: page})
	require.ErrorIs(t, err, vmm.ErrAddressSpace)
	heap := make([][]byte, 0, 64)
	for range 64 {
		heap = append(heap, make([]byte, 4*mib))
	}
	runtime.KeepAlive(heap)
	debug.FreeOSMemory()

	require.NoError(t, all[0].Close())
	g, err := d.NewRange(vmm.RangeOptions{Max: page})
	require.NoError(t, err)
	require.NoError(t, g.Append([]byte("on we go")))
	require.NoError(t, g.Close())

	old := vmm.SetAddressLimit(1 << 20)
	require.EqualValues(t, 1<<46, old)
	_, err = d.Reserve(page, vmm.ReserveOptions{})
	require.ErrorIs(t, err, vmm.ErrAddressSpace)
	vmm.SetAddressLimit(old)
	for _, r := range all[1:] {
		require.NoError(t, r.Close())
	}
	w.end()
}

// TestTheDriversOwnAddressesRunOut: without our own budget the driver returns the error,
// and it is the same.
func TestTheDriversOwnAddressesRunOut(t *testing.T) {
	w := worldOn(t, 1, host.Config{Memory: 1 << 30})
	defer vmm.SetAddressLimit(vmm.SetAddressLimit(1 << 63))
	_, err := w.devs[0].Reserve(1<<50, vmm.ReserveOptions{})
	require.ErrorIs(t, err, vmm.ErrAddressSpace)
	require.NotErrorIs(t, err, vmm.ErrOutOfMemory)
	w.end()
}

func TestOutOfMappings(t *testing.T) {
	w := worldOn(t, 1, host.Config{Memory: 1 << 30, Granularity: 4096, Mappings: 64})
	// Chunks that can be shared: the kernel joins others to one mapping.
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 4096 * page, Chunk: page, Share: vmm.ShareFD})
	require.NoError(t, err)
	for err == nil {
		err = g.Append(pattern(page, 1))
	}
	require.ErrorIs(t, err, vmm.ErrLimit)
	require.ErrorContains(t, err, "mappings")
	n := g.Len()
	require.Positive(t, n)
	require.Equal(t, n, g.Cap())
	require.NoError(t, g.SetLen(0))
	require.NoError(t, g.Clip(), "undo still works there")
	require.NoError(t, g.Close())
	w.end()
}

func TestOutOfMemoryLeavesTheNeed(t *testing.T) {
	w := worldOn(t, 1, host.Config{Memory: 100 * page, Granularity: 4096})
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 200 * page})
	require.NoError(t, err)
	require.NoError(t, g.Grow(90*page))
	require.NoError(t, g.SetLen(90*page))
	require.NoError(t, g.Append(pattern(page, 1)), "a quarter on top cannot be had, the page can")
	require.EqualValues(t, 91*page, g.Cap())
	err = g.Grow(10 * page)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.NotErrorIs(t, err, vmm.ErrAddressSpace)
	require.EqualValues(t, 91*page, g.Cap())
	free, _, err := w.devs[0].MemInfo()
	require.NoError(t, err)
	require.EqualValues(t, 9*page, free)
	require.NoError(t, g.Close())
	w.end()
}
