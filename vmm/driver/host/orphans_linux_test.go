package host

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// TestOrphansGoBack: memory that was released while another process had it
// is freed once none has, although there is memory enough.
func TestOrphansGoBack(t *testing.T) {
	d := New(Config{PageGranularity: true})
	p := driver.Prop{Location: driver.Location{Kind: driver.LocationDevice}, Share: driver.ShareFD}
	kept := -1
	for range 100 {
		h, err := d.Create(uint64(unix.Getpagesize()), p)
		require.NoError(t, err)
		fd, err := d.Export(h)
		require.NoError(t, err)
		require.NoError(t, d.Release(h))
		if kept < 0 {
			kept = fd
		} else {
			require.NoError(t, unix.Close(fd))
		}
	}
	require.LessOrEqual(t, len(d.orphans), 3)
	require.NoError(t, unix.Close(kept))
}
