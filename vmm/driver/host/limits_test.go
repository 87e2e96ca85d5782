//go:build linux

package host

import (
	"testing"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMappingsAreCounted(t *testing.T) {
	const size, chunks = 2 * mib, 8
	d := New(Config{Memory: 64 * mib, Mappings: chunks})
	p := reserved(t, d, 2*chunks*size)
	h := create(t, d, size, home)

	// At every other page, so that each mapping makes a gap too.
	var err error
	n := 0
	for ; n < chunks; n++ {
		if err = d.Map(p+driver.Ptr(2*n*size), size, h); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, driver.ErrLimit)
	require.ErrorContains(t, err, "Config.Mappings")
	require.Equal(t, chunks/2, n)
	_, err = d.Reserve(size, 0)
	require.ErrorIs(t, err, driver.ErrLimit)

	// A mapping that fills a gap needs no further one, and everything can be undone.
	require.NoError(t, d.Map(p+size, size, h))
	require.NoError(t, d.Unmap(p, 3*size))
	for n--; n > 1; n-- {
		require.NoError(t, d.Unmap(p+driver.Ptr(2*n*size), size))
	}
	require.Equal(t, 1, d.mappings)
	require.NoError(t, d.Free(p, 2*chunks*size))
	require.Zero(t, d.mappings)
	require.NoError(t, d.Release(h))
}

// TestMappingCountIsTheKernels compares the count with /proc in every state
// that a few chunks in one reservation can be in.
func TestMappingCountIsTheKernels(t *testing.T) {
	const size, places = 2 * mib, 4
	d := New(Config{Memory: 64 * mib})
	h := create(t, d, size, home)
	p := reserved(t, d, places*size)
	is := 0 // bit i: page i is mapped
	for step := range 1 << (2 * places) {
		i := step * 7 % places * (1 + step%3) % places
		at := p + driver.Ptr(i*size)
		if is&(1<<i) == 0 {
			require.NoError(t, d.Map(at, size, h))
		} else {
			require.NoError(t, d.Unmap(at, size))
		}
		is ^= 1 << i
		require.Equal(t, inside(t, p, places*size), d.mappings)
	}
	for i := range places {
		if is&(1<<i) != 0 {
			require.NoError(t, d.Unmap(p+driver.Ptr(i*size), size))
		}
	}
	require.NoError(t, d.Free(p, places*size))
	require.NoError(t, d.Release(h))
}

// inside is how many mappings the kernel has in a span. It may join a gap at the edge
// with the neighbour's.
func inside(t *testing.T, p driver.Ptr, size uint64) int {
	t.Helper()
	n := 0
	for _, m := range mappings(t) {
		if m.from < uint64(p)+size && uint64(p) < m.to {
			n++
		}
	}
	return n
}

func TestOutOfDescriptors(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	d := New(Config{Memory: 1 << 30})
	before := holds(t)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}))
	var all []driver.Handle
	var err error
	for len(all) < 64 {
		var h driver.Handle
		if h, err = d.Create(2*mib, shared); err != nil {
			break
		}
		all = append(all, h)
	}
	require.ErrorIs(t, err, driver.ErrLimit)
	require.ErrorIs(t, err, unix.EMFILE)
	require.Equal(t, uint64(len(all)*2*mib), d.states[0].used, "a failed Create is not counted")

	// Creating a share needs two for a moment, so one may be left.
	if h, err := d.Create(2*mib, home); err == nil {
		all = append(all, h)
	}
	_, err = d.Export(all[0])
	require.ErrorIs(t, err, driver.ErrLimit)
	require.ErrorIs(t, d.Supports(0, driver.FeatureShareFD), driver.ErrLimit)
	for _, h := range all {
		require.NoError(t, d.Release(h))
	}
	require.Equal(t, before, holds(t))
	require.NoError(t, d.Supports(0, driver.FeatureShareFD))
}

func TestOutOfAddresses(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	d := New(Config{Memory: 64 * mib})
	for _, size := range []uint64{1 << 47, 1 << 62, 1<<63 - 2*mib, 1 << 63, ^uint64(0) - 2*mib + 1} {
		_, err := d.Reserve(size, 0)
		require.ErrorIs(t, err, driver.ErrAddressSpace, "%d", size)
		require.NotErrorIs(t, err, driver.ErrOutOfMemory)
	}
	_, err := d.Reserve(2*mib, 1<<63)
	require.ErrorIs(t, err, driver.ErrAddressSpace)

	var all []driver.Ptr
	const step = 1 << 40
	for {
		p, err := d.Reserve(step, 0)
		if err != nil {
			require.ErrorIs(t, err, driver.ErrAddressSpace)
			break
		}
		all = append(all, p)
	}
	t.Logf("%d reservations of 1 TiB", len(all))
	require.GreaterOrEqual(t, len(all), 64)
	// Go's own heap still finds addresses.
	big := make([]byte, 256*mib)
	big[len(big)-1] = 1
	for _, p := range all {
		require.NoError(t, d.Free(p, step))
	}
	require.Zero(t, process.reserved)

	// The kernel's refusal is told from a lack of memory too.
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: 1 << 40, Max: unix.RLIM_INFINITY}))
	_, err = d.Reserve(2<<40, 0)
	require.ErrorIs(t, err, driver.ErrAddressSpace)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.Zero(t, d.mappings)
}

func TestAlignment(t *testing.T) {
	for _, c := range []Config{{}, {Granularity: 4096}} {
		d := New(c)
		for _, align := range []uint64{0, 1, 4096, 2 * mib, 64 * mib, 1 << 35} {
			before := len(mappings(t))
			p, err := d.Reserve(6*mib, align)
			require.NoError(t, err)
			require.Zero(t, uint64(p)%max(align, d.granularity))
			require.NoError(t, d.Free(p, 6*mib))
			require.InDelta(t, before, len(mappings(t)), 2, "what was cut off is given back")
		}
	}
}

// TestFileSizeLimit: memory is a file here, and the process's limit for files is told
// from a wrong argument.
func TestFileSizeLimit(t *testing.T) {
	if !testgate.InChild(t) {
		return
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: mib, Max: mib}))
	d := New(Config{Memory: 64 * mib})
	_, err := d.Create(4*mib, home)
	require.ErrorIs(t, err, driver.ErrLimit)
	require.ErrorContains(t, err, "RLIMIT_FSIZE")
	require.Zero(t, d.states[0].used)
}
