package vmm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// TestUnmapNowWaitsForNoWork of any stream, named or not, nor for captures.
func TestUnmapNowWaitsForNoWork(t *testing.T) {
	w := newWorld(t, 2)
	r := holed(t, w)
	require.NoError(t, r.Grant(vmm.AccessReadWrite, w.devs[1]))
	s, peer, ours, theirs := stream(t, w.devs[0]), stream(t, w.devs[1]), stream(t, w.devs[0]), stream(t, w.devs[0])
	first, second := gate(t, s.Device(), s.Raw()), gate(t, peer.Device(), peer.Raw())
	require.NoError(t, ours.BeginCapture())
	end := captured(t, w, theirs)
	gen := r.Generation()
	require.NoError(t, r.UnmapNow(8*page, page))
	require.Greater(t, r.Generation(), gen)
	require.NoError(t, r.UsedBy(s, peer))
	require.NoError(t, r.UnmapNow(9*page, 2*page))
	require.NoError(t, r.UnmapNow(0, 3*page))
	require.Empty(t, r.Segments())
	require.Zero(t, w.devs[0].Stats().Committed)
	end()
	g, err := ours.EndCapture()
	require.NoError(t, err)
	require.NoError(t, g.Close())
	first()
	second()
	require.NoError(t, r.Close())
	for _, s := range []*vmm.Stream{s, peer, ours, theirs} {
		require.NoError(t, s.Close())
	}
	w.end()
}

// TestUnmapNowWaitsForTheLibrary: its own copies, by call and by stream. Without the wait the
// memory goes under them.
func TestUnmapNowWaitsForTheLibrary(t *testing.T) {
	for _, off := range []bool{false, true} {
		for i := range 2 {
			w := newWorld(t, 2)
			r := holed(t, w)
			require.NoError(t, r.Grant(vmm.AccessReadWrite, w.devs[1]))
			open := gate(t, w.devs[i], raw(t, w.devs[i]).CopyStream())
			vmm.SetNoWait(w.devs[0], off)
			w.arm()
			taken := begun(func() error { return r.UnmapNow(8*page, 3*page) })
			if off {
				require.NoError(t, <-taken)
			} else {
				require.Eventually(t, func() bool { return w.waiting(i) }, 10*time.Second, time.Millisecond)
				require.Empty(t, taken)
			}
			open()
			if !off {
				require.NoError(t, <-taken)
			}
			vmm.SetNoWait(w.devs[0], false)
			require.NoError(t, r.Close())
			w.end()
		}
	}
}

// TestUnmapNowRefuses what Unmap refuses, and changes nothing.
func TestUnmapNowRefuses(t *testing.T) {
	w := newWorld(t, 1)
	r, g := holed(t, w), ranged(t, w, page)
	s := stream(t, w.devs[0])
	open := gate(t, s.Device(), s.Raw())
	unmapped := parked(func() error { return r.Unmap(0, page) })
	release, err := r.Hold(8*page, page)
	require.NoError(t, err)
	before := w.picture(r)
	for name, c := range map[string]struct {
		off, size uint64
		want      error
	}{
		"retiring":         {0, page, vmm.ErrBusy},
		"held":             {8 * page, 3 * page, vmm.ErrBusy},
		"a part":           {page, page, vmm.ErrInvalid},
		"a hole":           {3 * page, page, vmm.ErrInvalid},
		"nothing":          {page, 0, vmm.ErrBounds},
		"beyond the end":   {64 * page, page, vmm.ErrBounds},
		"an overflow":      {page, ^uint64(0), vmm.ErrBounds},
		"more than chunks": {9 * page, 3 * page, vmm.ErrInvalid},
	} {
		require.ErrorIs(t, r.UnmapNow(c.off, c.size), c.want, name)
		require.Equal(t, before, w.picture(r), name)
	}
	require.ErrorIs(t, g.Reservation().UnmapNow(0, page), vmm.ErrBusy)
	release()
	require.NoError(t, r.UnmapNow(8*page, page))
	open()
	require.NoError(t, unmapped())
	require.NoError(t, r.Close())
	require.ErrorIs(t, r.UnmapNow(page, page), vmm.ErrClosed)
	require.NoError(t, g.Close())
	require.NoError(t, s.Close())
	w.end()
}
