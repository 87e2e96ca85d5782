package vmm_test

import (
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// TestSleepInTheMiddle: many goroutines use ranges that fall asleep and wake.
func TestSleepInTheMiddle(t *testing.T) {
	w := newWorld(t, 2)
	d := w.devs[0]
	d.SetReleaseThreshold(16 * page)
	g := newRange(t, d, vmm.RangeOptions{Max: 64 * page, GrowAhead: 2 * page})
	h := newRange(t, w.devs[1], vmm.RangeOptions{Max: 64 * page})
	s := stream(t, d)
	require.NoError(t, h.Append(pattern(2*page, 8)))
	fine := func(err error) {
		if err != nil && !errors.Is(err, vmm.ErrAsleep) && !errors.Is(err, vmm.ErrBounds) && !errors.Is(err, vmm.ErrBusy) {
			t.Error(err)
		}
	}
	const rounds = 60
	var wg sync.WaitGroup
	var want []byte
	wg.Go(func() {
		for n := 0; n < rounds; {
			p := pattern(page/3, byte(n))
			err := g.Append(p)
			fine(err)
			if err == nil {
				want = append(want, p...)
				n++
			}
			runtime.Gosched()
		}
	})
	for _, f := range []func(n int) error{
		func(n int) error { return g.Grow(uint64(n%3) * page) },
		func(int) error { return g.Clip() },
		func(int) error {
			b := make([]byte, 2*page)
			n, err := h.ReadAt(b, 0)
			if err == nil && string(b[:n]) != string(pattern(2*page, 8)) {
				t.Error("other bytes")
			}
			return err
		},
		func(int) error { return g.Grant(vmm.AccessRead, w.devs[1]) },
		func(int) error { return g.Revoke(w.devs[1]) },
		func(int) error { return g.UsedBy(s) },
		func(int) error { return s.Fill(g.Ptr()+60*page, 1, 1, 1) },
		func(int) error { d.Stats(); g.Stats(); d.Report(); return nil },
		func(int) error { return vmm.Wake(h, g) },
	} {
		wg.Go(func() {
			for n := range rounds {
				fine(f(n))
			}
		})
	}
	for range rounds / 2 {
		fine(vmm.Sleep(vmm.SleepKeep, g, h))
		runtime.Gosched()
		if err := vmm.Wake(g, h); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	require.NoError(t, vmm.Wake(g, h))
	got := make([]byte, len(want))
	_, err := g.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.EqualValues(t, len(want), g.Len())
	require.EqualValues(t, len(want), d.Stats().Used)
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	require.NoError(t, h.Close())
	w.end()
}

// TestSetsThatOverlap fall asleep and wake in any order, without a deadlock. Each call is
// all or none.
func TestSetsThatOverlap(t *testing.T) {
	w := newWorld(t, 1)
	a, b, c := ranged(t, w, page), ranged(t, w, 2*page), ranged(t, w, 3*page)
	var wg sync.WaitGroup
	for _, set := range [][]*vmm.Range{{a, b}, {b, a}, {c, b}, {b, c, a}} {
		wg.Go(func() {
			for range 20 {
				if err := vmm.Sleep(vmm.SleepKeep, set...); err != nil && !errors.Is(err, vmm.ErrAsleep) {
					t.Error(err)
				}
				if err := vmm.Wake(set...); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, g := range []*vmm.Range{a, b, c} {
		awake(t, g)
		require.NoError(t, g.Close())
	}
	w.end()
}

// TestCloseMeetsWake: if Wake is later, it finds the range closed.
func TestCloseMeetsWake(t *testing.T) {
	w := newWorld(t, 1)
	for range 20 {
		g := ranged(t, w, 2*page)
		require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := vmm.Wake(g); err != nil && !errors.Is(err, vmm.ErrClosed) {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		require.Zero(t, w.devs[0].Stats().Asleep)
		require.Zero(t, w.devs[0].Stats().Committed)
	}
	w.end()
}

// TestSleepOfALostDevice: nothing falls asleep or wakes there, and everything can be
// released.
func TestSleepOfALostDevice(t *testing.T) {
	mayLose(t)
	w := newWorld(t, 2)
	d := w.devs[0]
	asleep, up := ranged(t, w, page), ranged(t, w, page)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, asleep))
	g, s, open := queuedClip(t, w)
	lose(t, w, d)
	open()
	require.ErrorIs(t, vmm.Sleep(vmm.SleepKeep, up), vmm.ErrDeviceLost)
	require.EqualValues(t, page, up.Cap(), "awake, for what it is worth")
	require.ErrorIs(t, vmm.Wake(asleep), vmm.ErrDeviceLost)
	require.True(t, asleep.Stats().Asleep)
	require.Zero(t, d.Stats().Quarantined)
	for d.Stats().Retiring > 0 { // lost work has ended, too
		_, err := d.Trim(0)
		require.NoError(t, err)
	}
	require.NoError(t, asleep.Close())
	require.ErrorIs(t, up.Close(), vmm.ErrDeviceLost)
	require.ErrorIs(t, g.Close(), vmm.ErrDeviceLost)
	_ = s.Close()
	require.Zero(t, d.Stats().Committed)
	require.Zero(t, d.Stats().Asleep)
}
