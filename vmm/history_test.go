package vmm_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// kinds are the kinds of events, in order.
func kindsOf(events []vmm.HistoryEvent) (all []string) {
	for _, e := range events {
		all = append(all, e.Kind)
	}
	return all
}

// TestHistory: what happens to a range is there, in its order, with its addresses and its caller.
func TestHistory(t *testing.T) {
	dev := newWorld(t, 1).devs[0]
	require.Empty(t, dev.History(0))
	dev.SetHistory(vmm.HistoryOptions{Events: 100})
	g, err := dev.NewRange(vmm.RangeOptions{Max: 64 * page, Chunk: 2 * page})
	require.NoError(t, err)
	require.NoError(t, g.Append(make([]byte, 3*page)))
	require.NoError(t, g.SetLen(page))
	require.NoError(t, g.Clip())
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	require.NoError(t, vmm.Wake(g))
	require.NoError(t, g.Close())
	all := dev.History(0)
	require.Equal(t, []string{
		"reserve", "create", "create", "map", "grow", "clip", "unmap", "release", "unmap", "sleep", "release", "create", "map", "wake", "unmap", "release", "close",
	}, kindsOf(all))
	at := all[0].Addr
	for i, e := range all {
		require.Equal(t, uint64(i+1), e.Seq)
		if e.Kind == "grow" {
			require.Equal(t, at, e.Addr)
			require.Equal(t, uint64(4*page), e.Size)
		}
		if e.Kind == "clip" {
			require.Equal(t, at+2*page, e.Addr)
			require.Equal(t, uint64(2*page), e.Size)
		}
		require.Contains(t, names(e.Stack), "vmm_test.TestHistory", e.Kind)
	}
	require.Len(t, dev.History(10), 7)
	dev.SetHistory(vmm.HistoryOptions{})
	require.Empty(t, dev.History(0))
}

// TestHistoryAfterOutOfMemory: the error says that there is a history, and that ends with it.
func TestHistoryAfterOutOfMemory(t *testing.T) {
	dev := newWorld(t, 1).devs[0]
	dev.SetLimit(4 * page)
	g, err := dev.NewRange(vmm.RangeOptions{Max: 64 * page, Chunk: 2 * page})
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	err = g.Grow(32 * page)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.NotContains(t, err.Error(), "History")
	dev.SetHistory(vmm.HistoryOptions{Events: 10_000})
	err = g.Grow(32 * page)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, "Device.History has what happened before")
	all := dev.History(0)
	require.Equal(t, []string{"refused"}, kindsOf(all))
	require.Equal(t, uint64(32*page), all[0].Size)
	require.NoError(t, g.Append(make([]byte, 4*page)))
	stop := dev.OnPressure(func(error) bool { return false })
	defer stop()
	_, err = dev.Create(page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.Equal(t, []string{"create", "create", "map", "grow", "pressure", "pressure", "refused"}, kindsOf(dev.History(all[0].Seq)))
}

// TestHistoryOfGrowthAhead: what the device's goroutine does for a range names who made the range.
func TestHistoryOfGrowthAhead(t *testing.T) {
	dev := newWorld(t, 1).devs[0]
	dev.SetHistory(vmm.HistoryOptions{Events: 1 << 62}) // more than there may be
	g, err := dev.NewRange(vmm.RangeOptions{Max: 64 * page, Chunk: page, GrowAhead: 8 * page})
	require.NoError(t, err)
	require.NoError(t, g.Append(make([]byte, 1)))
	require.Eventually(t, func() bool { return g.Cap() >= 8*page }, time.Minute, time.Millisecond)
	for _, e := range dev.History(0) {
		if e.Kind == "grow" {
			require.Contains(t, names(e.Stack), "vmm_test.TestHistoryOfGrowthAhead")
		}
	}
	require.NoError(t, g.Close())
}

func names(pcs []uintptr) (all string) {
	frames := runtime.CallersFrames(pcs)
	for f, more := frames.Next(); more; f, more = frames.Next() {
		all += f.Function + "\n"
	}
	return all
}

// capOf is the Cap that the events of a range add up to.
func capOf(events []vmm.HistoryEvent) (n uint64) {
	for _, e := range events {
		switch e.Kind {
		case "grow":
			n += e.Size
		case "clip":
			n -= e.Size
		}
	}
	return n
}

// TestHistoryFollowsCap: also while a Clip waits and an Append takes back what it gives up, and when the
// Clip then fails.
func TestHistoryFollowsCap(t *testing.T) {
	for _, refused := range []error{nil, errInjected} {
		w := newWorld(t, 1)
		d := w.devs[0]
		d.SetHistory(vmm.HistoryOptions{Events: 100})
		g, s := ranged(t, w, 8*page), stream(t, d)
		require.NoError(t, g.SetLen(2*page))
		open := gate(t, d, s.Raw())
		clipped := make(chan error)
		go func() { clipped <- g.Clip() }()
		require.Eventually(t, func() bool { return g.Cap() == 2*page && capOf(d.History(0)) == 2*page }, 10*time.Second, time.Millisecond)
		require.NoError(t, g.Append(make([]byte, 2*page)))
		require.Equal(t, g.Cap(), capOf(d.History(0)))
		if refused != nil {
			w.refuse("Unmap", 1, refused)
		}
		open()
		require.ErrorIs(t, <-clipped, refused)
		require.Equal(t, g.Cap(), capOf(d.History(0)))
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
		w.end()
	}
}

// TestHistoryClosesFirst: the addresses are another range's only after the event that gives them back.
func TestHistoryClosesFirst(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetHistory(vmm.HistoryOptions{Events: 100})
	g := newRange(t, d, vmm.RangeOptions{Max: 1 << 37}) // too large for an arena
	w.refuse("Free", 1, errInjected)
	require.ErrorIs(t, g.Close(), errInjected)
	require.Equal(t, []string{"reserve", "close", "reserve"}, kindsOf(d.History(0)))
	require.NoError(t, g.Close())
	require.Equal(t, []string{"reserve", "close", "reserve", "close"}, kindsOf(d.History(0)))
	w.end()
}
