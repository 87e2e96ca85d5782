package vmm_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestHoldsAreNamed: what is refused because bytes are held says who holds them.
func TestHoldsAreNamed(t *testing.T) {
	w := newWorld(t, 1)
	g, r := ranged(t, w, 4*page), holed(t, w)
	// made is the text of something made on the line above the call.
	made := func(what string, off, end int) string {
		_, file, line, _ := runtime.Caller(1)
		return fmt.Sprintf("%s made at %s:%d [%#x, %#x)", what, file, line-1, off, end)
	}
	refused := func(err error, says ...string) {
		t.Helper()
		require.ErrorIs(t, err, vmm.ErrBusy)
		require.ErrorContains(t, err, "held: "+strings.Join(says, "; "))
		require.True(t, strings.HasSuffix(err.Error(), says[len(says)-1]), err)
	}

	release, err := g.Hold(0, 2*page)
	own := made("a hold", 0, 2*page)
	require.NoError(t, err)
	refused(g.SetLen(page), own)
	named, err := inside.VMM.HoldRange(g, `published as "x"`, page, page)
	require.NoError(t, err)
	published := fmt.Sprintf(`published as "x" [%#x, %#x)`, page, 2*page)
	refused(g.SetLen(page), own, published)
	require.NoError(t, g.SetLen(2*page))
	mirror, err := w.devs[0].NewMirror(g.Ptr(), page/2, vmm.MirrorOptions{Init: true})
	copied := made("a mirror", 0, page/2)
	require.NoError(t, err)
	refused(g.SetLen(page), own, published)
	refused(g.Close(), own, published, copied)
	release()
	refused(g.SetLen(page), published)
	named()
	refused(g.SetLen(0), copied)
	require.NoError(t, mirror.Close())
	require.NoError(t, g.SetLen(page))
	release, err = g.Hold(0, page+page/2)
	own = made("a hold", 0, page+page/2)
	require.NoError(t, err)
	refused(g.Clip(), own)
	release()
	release, err = inside.VMM.HoldRange(g, "a launch", 0, 0)
	require.NoError(t, err)
	require.NoError(t, g.SetLen(0))
	refused(g.Close(), "a launch")
	release()
	require.NoError(t, g.Close())

	release, err = r.Hold(0, 1)
	own = made("a hold", 0, 1)
	require.NoError(t, err)
	named, err = inside.VMM.HoldReservation(r, "a launch", 1, 1)
	require.NoError(t, err)
	refused(r.Unmap(0, page), own, "a launch [0x1, 0x2)")
	refused(r.UnmapNow(0, page), own, "a launch [0x1, 0x2)")
	refused(r.Close(), own, "a launch [0x1, 0x2)")
	release()
	named()
	require.NoError(t, r.Close())
	w.end()
}

// TestManyHoldsAreNamed once if they have one name, and the first few of many.
func TestManyHoldsAreNamed(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, page)
	var all []func()
	for i := range 20 {
		release, err := inside.VMM.HoldRange(g, fmt.Sprintf("hold %d", i/2), 0, 0)
		require.NoError(t, err)
		all = append(all, release)
	}
	require.ErrorContains(t, g.Close(), "held: hold 0; hold 1; hold 2; hold 3; hold 4; hold 5; hold 6; hold 7; and 5 more")
	for _, release := range all {
		release()
	}
	require.NoError(t, g.Close())
	w.end()
}

// TestHoldForRefuses what Hold refuses.
func TestHoldForRefuses(t *testing.T) {
	w := newWorld(t, 1)
	g, r := ranged(t, w, page), holed(t, w)
	_, err := inside.VMM.HoldRange(g, "x", 0, g.Cap()+1)
	require.ErrorIs(t, err, vmm.ErrBounds)
	_, err = inside.VMM.HoldReservation(r, "x", 0, r.Size()+1)
	require.ErrorIs(t, err, vmm.ErrBounds)
	of, _, ok := w.devs[0].Lookup(g.Ptr())
	require.True(t, ok)
	_, err = inside.VMM.HoldReservation(of, "x", 0, 0)
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.NoError(t, g.Close())
	require.NoError(t, r.Close())
	_, err = inside.VMM.HoldRange(g, "x", 0, 0)
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = inside.VMM.HoldReservation(r, "x", 0, 0)
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = inside.VMM.HoldRange(nil, "x", 0, 0)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = inside.VMM.HoldReservation(nil, "x", 0, 0)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	w.end()
}
