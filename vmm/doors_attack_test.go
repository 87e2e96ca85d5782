package vmm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// What is tested here is what UnmapAfter has left to its streams, beside everything else
// that takes memory away.

// behind is work on s; a test that fails lets it run, or its cleanup waits for ever.
func behind(t *testing.T, d *vmm.Device, s *vmm.Stream, p vmm.Ptr) (open func()) {
	t.Helper()
	open = work(t, d, s.Raw(), p)
	t.Cleanup(func() {
		if t.Failed() {
			open()
		}
	})
	return open
}

// TestUnmapAfterInNoOrder: what waits for a slow stream does not keep what another
// stream has done with, and nor does an unmap that fails.
func TestUnmapAfterInNoOrder(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	vmm.SetNoWorker(d, true)
	r := holed(t, w)
	slow, fast := stream(t, d), stream(t, d)
	open := behind(t, d, slow, r.Ptr())
	require.NoError(t, r.UnmapAfter(0, page, slow))
	require.NoError(t, r.UnmapAfter(page, 2*page, fast))
	require.NoError(t, r.UnmapAfter(8*page, page, slow))
	require.NoError(t, r.UnmapAfter(9*page, 2*page, fast))
	require.NoError(t, fast.Sync())
	w.refuse("Unmap", 1, errInjected)
	require.ErrorIs(t, vmm.Drain(d), errInjected)
	require.EqualValues(t, 4*page, d.Stats().Retiring)
	require.NoError(t, vmm.Drain(d))
	require.EqualValues(t, 2*page, d.Stats().Retiring)
	open()
	require.NoError(t, vmm.Drain(d))
	require.Zero(t, d.Stats().Retiring)
	vmm.SetNoWorker(d, false)
	require.NoError(t, r.Close())
	require.NoError(t, slow.Close())
	require.NoError(t, fast.Close())
	w.end()
}

// TestUnmapAfterDuringAnUnmap: the Unmap's wait began before the work that UnmapAfter
// waits for was queued, so it does not stand for it.
func TestUnmapAfterDuringAnUnmap(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	vmm.SetNoWorker(d, true)
	r := holed(t, w)
	s := stream(t, d)
	require.NoError(t, r.UsedBy(s))
	h := haltAt(w, func(c drivertest.Call) bool { return c.Name == "SyncEvent" })
	h.armed.Store(true)
	unmapped := make(chan error, 1)
	go func() { unmapped <- r.Unmap(8*page, 3*page) }()
	<-h.reached
	open := behind(t, d, s, r.Ptr())
	require.NoError(t, r.UnmapAfter(0, page, s))
	h.let()
	require.NoError(t, <-unmapped)
	require.EqualValues(t, page, d.Stats().Retiring)
	open()
	require.NoError(t, d.Sync(), "the device is well")
	require.NoError(t, vmm.Drain(d))
	require.Zero(t, d.Stats().Retiring)
	vmm.SetNoWorker(d, false)
	require.NoError(t, r.Close())
	require.NoError(t, s.Close())
	w.end()
}

// TestUnmapAfterOfAStreamThatUsedByLeftOut: what takes the same memory away before
// the stream is done waits for it, though UsedBy has named another one.
func TestUnmapAfterOfAStreamThatUsedByLeftOut(t *testing.T) {
	for name, take := range map[string]func(w *world, r *vmm.Reservation) error{
		"close":  func(_ *world, r *vmm.Reservation) error { return r.Close() },
		"revoke": func(w *world, r *vmm.Reservation) error { return r.Revoke(w.devs[1]) },
		"narrow": func(w *world, r *vmm.Reservation) error { return r.Grant(vmm.AccessRead, w.devs[1]) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 2, func(t *testing.T, w *paced) {
				d, peer := w.devs[0], w.devs[1]
				r := holed(t, w.world)
				require.NoError(t, r.Grant(vmm.AccessReadWrite, peer))
				named, other := stream(t, d), stream(t, peer)
				require.NoError(t, r.UsedBy(named))
				open := behind(t, peer, other, r.Ptr())
				require.NoError(t, r.UnmapAfter(0, page, other, other))
				taken := begun(func() error { return take(w.world, r) })
				pass(time.Second)
				require.Empty(t, taken)
				require.Zero(t, w.made("Unmap"))
				open()
				require.NoError(t, <-taken)
				require.NoError(t, peer.Sync(), "the device is well")
				pass(100 * time.Millisecond)
				require.Zero(t, d.Stats().Retiring)
				require.NoError(t, r.Close())
				require.NoError(t, named.Close())
				require.NoError(t, other.Close())
			})
		})
	}
}
