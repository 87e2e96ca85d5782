//go:build linux

package host

import (
	"os"
	"testing"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
)

func TestDefault(t *testing.T) {
	d := Default()
	require.Same(t, d, Default())
	all, err := d.Devices()
	require.NoError(t, err)
	require.Len(t, all, 16)
	again, err := New(Config{}).Devices()
	require.NoError(t, err)
	require.Len(t, again, 1)
	require.Equal(t, all[0], again[0], "the same device in every driver and process")
	require.NotEqual(t, all[0].UUID, all[1].UUID)
	require.Equal(t, "host:15", all[15].Open)
	require.NotZero(t, all[0].Memory)
	require.True(t, all[0].Unified)
	open(t, d, 15)
	_, err = d.Open(16)
	require.ErrorIs(t, err, driver.ErrNoDevice)
}

func TestNoPeer(t *testing.T) {
	d := New(Config{Devices: 3, Memory: 64 * mib, NoPeer: [][2]int{{0, 2}, {7, 9}}})
	for _, c := range []struct {
		from, to int
		yes      bool
	}{{0, 1, true}, {1, 2, true}, {0, 0, true}, {0, 2, false}, {2, 0, false}} {
		yes, err := d.CanAccessPeer(c.from, c.to)
		require.NoError(t, err)
		require.Equal(t, c.yes, yes, "%v", c)
	}
	p := chunk(t, d, 2*mib)
	require.ErrorIs(t, d.SetAccess(p, 2*mib, []driver.Grant{{To: on(1), Access: driver.AccessRead}, {To: on(2), Access: driver.AccessRead}}), driver.ErrInvalid)
	a, err := d.Access(p, on(1))
	require.NoError(t, err)
	require.Equal(t, driver.AccessNone, a, "nothing changed")
	require.NoError(t, d.SetAccess(p, 2*mib, grant(2, driver.AccessNone)))
	require.NoError(t, d.SetAccess(p, 2*mib, grant(1, driver.AccessRead)))
}

func TestGranularity(t *testing.T) {
	page := uint64(os.Getpagesize())
	for _, c := range []struct{ ask, is uint64 }{
		{0, 2 * mib}, {1, page}, {page, page}, {page + 1, 2 * page}, {3 * mib, 4 * mib}, {1 << 40, 1 << 40}, {^uint64(0), 1 << 62},
	} {
		g, err := New(Config{Granularity: c.ask}).Granularity(home)
		require.NoError(t, err)
		require.Equal(t, c.is, g, "%d", c.ask)
	}
	d := New(Config{Memory: 64 * mib, Granularity: page})
	v := open(t, d, 0)
	p := chunk(t, d, 3*page)
	require.NoError(t, v.CopyIn(p+driver.Ptr(3*page-1), []byte{7}))
	require.ErrorIs(t, v.CopyIn(p+driver.Ptr(3*page-1), []byte{7, 7}), driver.ErrInvalid)
}

// TestDefaultWith: a driver for each granularity, whose devices name it.
func TestDefaultWith(t *testing.T) {
	none, err := DefaultWith("")
	require.NoError(t, err)
	require.Same(t, Default(), none)
	same, err := DefaultWith("page=2048K")
	require.NoError(t, err)
	require.Same(t, Default(), same)
	d, err := DefaultWith("page=64K")
	require.NoError(t, err)
	again, err := DefaultWith("page=65536")
	require.NoError(t, err)
	require.Same(t, d, again)
	all, err := d.Devices()
	require.NoError(t, err)
	require.Len(t, all, 16)
	require.Equal(t, "host:15?page=64K", all[15].Open)
	require.Equal(t, "host", d.Name())
}

// TestSupports names what host memory has and a card has not.
func TestSupports(t *testing.T) {
	small, large := New(Config{Granularity: 1}), New(Config{})
	for _, f := range []driver.Feature{driver.FeatureShareReadOnly, driver.FeatureHostView} {
		require.NoError(t, small.Supports(0, f))
		require.NoError(t, large.Supports(0, f))
	}
	require.NoError(t, small.Supports(0, driver.FeaturePageChunks))
	err := large.Supports(0, driver.FeaturePageChunks)
	require.ErrorIs(t, err, driver.ErrNotSupported)
	require.ErrorContains(t, err, "page-chunks: the granularity is 2097152 bytes")
}

// TestUnionIsWhatThePageTableAllows compares the union with /proc.
func TestUnionIsWhatThePageTableAllows(t *testing.T) {
	d := New(Config{Devices: 2, Memory: 64 * mib})
	p := chunk(t, d, 2*mib)
	for _, c := range []struct {
		zero, one driver.Access
		want      string
	}{
		{driver.AccessNone, driver.AccessNone, "---s"},
		{driver.AccessRead, driver.AccessNone, "r--s"},
		{driver.AccessRead, driver.AccessReadWrite, "rw-s"},
		{driver.AccessNone, driver.AccessRead, "r--s"},
	} {
		require.NoError(t, d.SetAccess(p, 2*mib, []driver.Grant{{To: on(0), Access: c.zero}, {To: on(1), Access: c.one}}))
		require.Equal(t, c.want, rights(t, p), "%v", c)
	}
}
