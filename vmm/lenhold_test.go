package vmm_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestLenHold: it holds what Len counts, wherever that goes, tells of each rise in the call that
// raises it, and only who has it moves Len back.
func TestLenHold(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, 10)
	var told []uint64
	h, err := inside.VMM.HoldLen(g, "shown", func(n uint64) bool {
		require.Equal(t, n, g.Len())
		told = append(told, n)
		return true
	}, func() {})
	require.NoError(t, err)
	held := func(err error, end uint64) {
		t.Helper()
		require.ErrorIs(t, err, vmm.ErrBusy)
		require.ErrorContains(t, err, fmt.Sprintf("held: shown [0x0, %#x)", end))
	}
	held(g.SetLen(9), 10)
	require.NoError(t, g.Append(make([]byte, 2*page)))
	held(g.SetLen(10), 10+2*page)
	require.NoError(t, g.SetLen(3*page))
	require.NoError(t, g.SetLen(3*page), "where it is")
	require.Equal(t, []uint64{10 + 2*page, 3 * page}, told)
	held(vmm.Sleep(vmm.SleepKeep, g), 3*page)
	held(g.Close(), 3*page)
	require.NoError(t, g.Grow(5*page))
	require.NoError(t, g.Clip(), "what Len does not count is not held")
	require.Equal(t, uint64(3*page), g.Cap())

	other, err := inside.VMM.HoldLen(g, "shown elsewhere", nil, nil)
	require.NoError(t, err)
	require.ErrorContains(t, h.SetLen(page), "held: shown elsewhere [0x0")
	other.Release()
	require.NoError(t, h.SetLen(page))
	require.NoError(t, g.Clip())
	held(g.SetLen(0), page)
	require.NoError(t, h.SetLen(0))
	require.ErrorContains(t, g.Close(), "held: shown")
	h.Release()
	h.Release()
	require.NoError(t, g.Append([]byte{1}))
	require.Len(t, told, 2, "it tells no more")
	require.NoError(t, g.Close())
	_, err = inside.VMM.HoldLen(g, "late", nil, nil)
	require.ErrorIs(t, err, vmm.ErrClosed)
	w.end()
}

// TestLenHoldFixed: it holds what it is told to, of what it has held, and tells nothing.
func TestLenHoldFixed(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, 1000)
	told := false
	h, err := inside.VMM.HoldLen(g, "shown", func(uint64) bool { told = true; return false }, func() { told = true })
	require.NoError(t, err)
	h.Fix(500)
	defer func() { require.False(t, told) }()
	require.NoError(t, g.SetLen(2000))
	require.NoError(t, g.SetLen(500))
	require.ErrorContains(t, g.SetLen(499), "held: shown [0x0, 0x1f4)")
	h.Fix(600)
	require.NoError(t, g.SetLen(700))
	require.NoError(t, g.SetLen(500), "it holds no more than it did")
	h.Release()
	h.Fix(100)
	require.NoError(t, g.SetLen(0))
	require.NoError(t, g.Close())
	w.end()
}

// TestLenHoldTellsOfWhatIsWritten: not of the bytes of an AppendOn, nor of those behind them.
func TestLenHoldTellsOfWhatIsWritten(t *testing.T) {
	w := newWorld(t, 1)
	g, s := ranged(t, w, 10), stream(t, w.devs[0])
	var told []uint64
	left := 0
	h, err := inside.VMM.HoldLen(g, "shown", func(n uint64) bool { told = append(told, n); return true }, func() { left++ })
	require.NoError(t, err)
	open := gate(t, w.devs[0], s.Raw())
	require.NoError(t, g.AppendOn(s, make([]byte, 10)))
	require.ErrorIs(t, g.SetLen(10), vmm.ErrBusy, "it is held all the same")
	require.NoError(t, g.Append([]byte{1}))
	require.Empty(t, told)
	require.Equal(t, 2, left, "the holder waits for both")
	open()
	n, err := g.WaitWritten(t.Context())
	require.NoError(t, err)
	require.Equal(t, uint64(21), n)
	require.Empty(t, told, "who waits knows")
	require.NoError(t, g.Append([]byte{1}))
	require.Equal(t, []uint64{22}, told)
	require.Equal(t, 2, left)
	require.NoError(t, g.AppendOn(s, []byte{1}))
	require.NoError(t, s.Close()) // which waits
	require.NoError(t, g.Append([]byte{1}))
	require.Equal(t, []uint64{22, 24}, told)
	h.Release()
	require.NoError(t, g.Close())
	w.end()
}

// TestLenHoldTellsOfAllElse: of what closes Changed, but for a Len with which the holder is done.
func TestLenHoldTellsOfAllElse(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, 10)
	done, left := true, 0
	h, err := inside.VMM.HoldLen(g, "shown", func(uint64) bool { return done }, func() { left++ })
	require.NoError(t, err)
	after := func(want int, f func() error) {
		t.Helper()
		left = 0
		changed := g.Changed()
		require.NoError(t, f())
		require.Equal(t, want, left)
		<-changed
	}
	after(0, func() error { return g.SetLen(20) })
	done = false
	after(1, func() error { return g.SetLen(30) })
	after(1, func() error { return h.SetLen(0) })
	after(1, func() error { return g.Grow(3 * page) })
	after(1, g.Clip)
	h.Release()
	require.NoError(t, g.Append([]byte{1}))
	require.Equal(t, 1, left, "it tells no more")

	raised := 0
	one, err := inside.VMM.HoldLen(g, "shown", func(uint64) bool { raised++; return false }, nil)
	require.NoError(t, err)
	other, err := inside.VMM.HoldLen(g, "shown", nil, func() { left++ })
	require.NoError(t, err)
	after(2, func() error { return g.Append(make([]byte, 2*page)) }) // the capacity, and Len
	require.Equal(t, 1, raised)
	one.Release()
	other.Release()
	require.NoError(t, g.Close())
	w.end()
}

// TestLenHoldsBesideAppends: holds come and go beside appends, each of which tells the hold that
// stays.
func TestLenHoldsBesideAppends(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, 1)
	told := uint64(1)
	h, err := inside.VMM.HoldLen(g, "stays", func(n uint64) bool {
		require.Equal(t, told+1, n)
		told = n
		return true
	}, func() {})
	require.NoError(t, err)
	rounds := testgate.Effort(200, 2000, 20000)
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			for range rounds {
				o, err := inside.VMM.HoldLen(g, "comes and goes", func(uint64) bool { return true }, func() {})
				require.NoError(t, err)
				require.ErrorIs(t, g.SetLen(0), vmm.ErrBusy)
				o.Release()
			}
		})
	}
	for range rounds {
		require.NoError(t, g.Append([]byte{1}))
	}
	group.Wait()
	require.Equal(t, g.Len(), told)
	h.Release()
	require.NoError(t, g.SetLen(0))
	require.NoError(t, g.Close())
	w.end()
}
