//go:build linux

package host

import (
	"testing"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestNoPageIsAnError: a large copy into memory for which the system has no page is an
// error. /dev/full stands for a system without pages: a store
// through the mapping would end the process there.
func TestNoPageIsAnError(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	p := chunk(t, d, 4*mib)
	m := d.region(uint64(p)).maps[0].memory
	full, err := unix.Open("/dev/full", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	fd := m.fd
	m.fd = full
	for range 2 {
		err = v.CopyIn(p, pattern(2*mib))
		require.ErrorIs(t, err, driver.ErrOutOfMemory)
		require.ErrorIs(t, err, unix.ENOSPC)
	}

	// The same after queued work, where the stream's goroutine runs the copy.
	pass := gate(t, v, v.CopyStream())
	copied := make(chan error, 1)
	go func() { copied <- v.CopyIn(p, pattern(2*mib)) }()
	pass()
	require.ErrorIs(t, <-copied, driver.ErrOutOfMemory)

	m.fd = fd
	require.NoError(t, unix.Close(full))
	require.NoError(t, v.CopyIn(p, pattern(2*mib)), "the device goes on")
}
