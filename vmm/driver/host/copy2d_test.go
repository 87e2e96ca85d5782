//go:build linux

package host

import (
	"bytes"
	"testing"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestNoPageForRowsIsAnError: the system is asked for the pages of untouched rows before
// they are written, and its refusal is an error. /dev/full has no pages to give.
func TestNoPageForRowsIsAnError(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	p := chunk(t, d, 4*mib)
	m := d.region(uint64(p)).maps[0].memory
	full, err := unix.Open("/dev/full", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	fd := m.fd
	m.fd = full
	src := bytes.Repeat([]byte{1}, mib)
	for _, shape := range [][2]uint64{{1000, 1024}, {64 << 10, 64<<10 + 1}, {128 << 10, 256 << 10}} {
		n := mib / shape[0] * shape[0]
		err = v.CopyIn2D(driver.PitchedPtr{Ptr: p, Pitch: shape[1]}, src[:n], shape[0])
		require.ErrorIs(t, err, unix.ENODEV, "%v", shape)
	}
	m.fd = fd
	require.NoError(t, unix.Close(full))
	rows := driver.PitchedPtr{Ptr: p, Pitch: 128 << 10}
	require.NoError(t, v.CopyIn2D(rows, src[:32*10_000], 10_000), "few bytes far apart ask for no pages between them")
	require.Zero(t, m.touched.Load())
	rows.Pitch = 1024
	require.NoError(t, v.CopyIn2D(rows, src[:1000*1000], 1000), "the device goes on")
	require.EqualValues(t, 999*1024+1000, m.touched.Load())
	got := make([]byte, 1000*1000)
	require.NoError(t, v.CopyOut2D(got, rows, 1000))
	require.Equal(t, src[:1000*1000], got)
}

// TestPitchIsWholeCacheLines: no two rows share one.
func TestPitchIsWholeCacheLines(t *testing.T) {
	v := open(t, New(Config{}), 0)
	for width, want := range map[uint64]uint64{1: 64, 63: 64, 64: 64, 65: 128, 3072: 3072, 3001: 3008} {
		n, err := v.Pitch(width)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
}
