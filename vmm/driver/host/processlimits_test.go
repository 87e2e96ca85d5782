//go:build linux

package host

import (
	"testing"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// sieve maps up to that many pages with gaps between them, or until the driver refuses. It
// returns how many, and the undo.
func sieve(t *testing.T, d *Driver, pages int) (n int, undo func()) {
	t.Helper()
	size := d.granularity
	p := reserved(t, d, uint64(2*pages)*size)
	h := create(t, d, size, home)
	for ; n < pages; n++ {
		if err := d.Map(p+driver.Ptr(uint64(2*n)*size), size, h); err != nil {
			require.ErrorIs(t, err, driver.ErrLimit)
			require.ErrorContains(t, err, "vm.max_map_count")
			break
		}
	}
	return n, func() {
		for i := n - 1; i >= 0; i-- {
			require.NoError(t, d.Unmap(p+driver.Ptr(uint64(2*i)*size), size))
		}
		require.NoError(t, d.Release(h))
		require.NoError(t, d.Free(p, uint64(2*pages)*size))
	}
}

// TestDriversShareTheMappings takes most of what a process can have with one
// Driver and the rest with another, then the same beside an application that
// maps things of its own. With a count for each, Go would die of a failed mmap.
func TestDriversShareTheMappings(t *testing.T) {
	testgate.Long(t)
	if !testgate.InChild(t) {
		return
	}
	limit := maxMapCount()
	if limit > 1<<17 {
		t.Skipf("needs a smaller vm.max_map_count than %d, to reach it", limit)
	}
	a, b := New(Config{Memory: 64 * mib, Granularity: 4096}), New(Config{Memory: 64 * mib, Granularity: 4096})
	n, undoA := sieve(t, a, limit/3)
	require.Equal(t, limit/3, n)
	_, undoB := sieve(t, b, limit)
	all, _ := mapped()
	require.InDelta(t, limit-spareMappings, all, 8)

	// An undo still works, and so does the program.
	undoB()
	undoA()
	require.Zero(t, process.mappings)

	// What the application maps counts too: pages of alternating rights, which the
	// kernel cannot join.
	const own = 1 << 14
	page := uint64(unix.Getpagesize())
	at, err := mmap(0, own*page, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
	require.NoError(t, err)
	for i := uint64(0); i < own; i += 2 {
		require.NoError(t, mprotect(at+i*page, page, unix.PROT_READ|unix.PROT_WRITE))
	}
	_, undo := sieve(t, a, limit)
	all, _ = mapped()
	require.InDelta(t, limit-spareMappings, all, 8)
	undo()
	require.NoError(t, munmap(at, own*page))
}

// TestRecountCountsNeighboursApart: where the kernel joins adjacent reservations, the
// count does not fall.
func TestRecountCountsNeighboursApart(t *testing.T) {
	d := New(Config{Memory: 64 * mib, Granularity: 4096})
	var l processLimits
	l.recount()
	before := l.limit
	const n = 200
	var all []driver.Ptr
	for range n {
		all = append(all, reserved(t, d, d.granularity))
		l.mappings++
	}
	l.recount()
	require.InDelta(t, before, l.limit, n/4)
	for _, p := range all {
		require.NoError(t, d.Free(p, d.granularity))
	}
}

// TestDriversShareTheAddresses: two Drivers together leave Go's heap as many addresses
// as one.
func TestDriversShareTheAddresses(t *testing.T) {
	a, b := New(Config{Memory: 64 * mib}), New(Config{Memory: 64 * mib})
	const half = addressLimit / 2
	p := reserved(t, a, half)
	_, err := b.Reserve(half+2*mib, 0)
	require.ErrorIs(t, err, driver.ErrAddressSpace)
	_, _, err = open(t, b, 0).AllocHost(half + 1)
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
	require.NoError(t, a.Free(p, half))
}
