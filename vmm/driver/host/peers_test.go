//go:build linux

package host

import (
	"testing"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
)

func TestPeering(t *testing.T) {
	d := New(Config{Devices: 3, Memory: 64 * mib, NoPeer: [][2]int{{0, 2}}})
	for _, c := range []struct {
		from, to int
		want     driver.Peering
	}{
		{0, 0, driver.Peering{Access: true, Link: "self", Atomics: true}},
		{0, 1, driver.Peering{Access: true, Link: "host", Atomics: true}},
		{1, 2, driver.Peering{Access: true, Link: "host", Atomics: true}},
		{0, 2, driver.Peering{Link: "none", Rank: -1}},
		{2, 0, driver.Peering{Link: "none", Rank: -1}},
	} {
		got, err := d.Peering(c.from, c.to)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%v", c)
		reach, err := d.CanAccessPeer(c.from, c.to)
		require.NoError(t, err)
		require.Equal(t, reach, got.Access, "the two agree")
	}
	for _, pair := range [][2]int{{0, 3}, {3, 0}, {-1, 0}} {
		_, err := d.Peering(pair[0], pair[1])
		require.ErrorIs(t, err, driver.ErrNoDevice)
	}
}

func TestEnablePeer(t *testing.T) {
	d := New(Config{Devices: 3, Memory: 64 * mib, NoPeer: [][2]int{{0, 2}}})
	a, b := open(t, d, 0), open(t, d, 1)
	require.ErrorIs(t, a.DisablePeer(1), driver.ErrInvalid, "not enabled")
	require.NoError(t, a.EnablePeer(1))
	require.ErrorIs(t, a.EnablePeer(1), driver.ErrPeerEnabled)
	require.ErrorIs(t, open(t, d, 0).EnablePeer(1), driver.ErrPeerEnabled, "it is the context's")
	require.ErrorIs(t, b.DisablePeer(0), driver.ErrInvalid, "one way only")
	require.NoError(t, a.DisablePeer(1))
	require.ErrorIs(t, a.DisablePeer(1), driver.ErrInvalid)

	require.ErrorIs(t, a.EnablePeer(0), driver.ErrInvalid, "itself")
	require.ErrorIs(t, a.EnablePeer(2), driver.ErrNotSupported, "no path")
	require.ErrorIs(t, a.EnablePeer(3), driver.ErrNoDevice)

	v, err := d.Open(2)
	require.NoError(t, err)
	require.NoError(t, v.(*device).EnablePeer(1))
	require.NoError(t, v.Close())
	require.ErrorIs(t, v.(*device).EnablePeer(1), driver.ErrClosed)
	require.NoError(t, open(t, d, 2).EnablePeer(1), "it ended with the context")
}

// Every device may use plain memory, and only devices with a grant mapped memory,
// whether or not peer access is enabled.
func TestEnablePeerIsNotForMappedMemory(t *testing.T) {
	d := New(Config{Devices: 2, Memory: 64 * mib})
	a, b := open(t, d, 0), open(t, d, 1)
	plain, err := a.AllocPlain(4096)
	require.NoError(t, err)
	mapped := chunk(t, d, 2*mib)
	buf := make([]byte, 4096)
	for range 2 {
		require.NoError(t, b.CopyOut(buf, plain))
		require.ErrorIs(t, b.CopyOut(buf, mapped), driver.ErrInvalid)
		if err := b.EnablePeer(0); err != nil {
			require.ErrorIs(t, err, driver.ErrPeerEnabled)
		}
	}
	require.NoError(t, a.FreePlain(plain))
}
