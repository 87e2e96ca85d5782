package vmm_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/randomops"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// TestWatch follows a range from its first chunk to its end.
func TestWatch(t *testing.T) {
	w := newWorld(t, 1)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page})
	require.NoError(t, g.Grow(2*page))
	r := w.register(g)
	does := func(want []string, err error) {
		t.Helper()
		require.NoError(t, err)
		require.Equal(t, want, r.since())
		w.registered("")
	}
	does([]string{"+0", "+1"}, nil)
	does([]string{"+2", "+3"}, g.Append(pattern(4*page, 1)))
	does(nil, g.SetLen(page))
	does([]string{"-1", "-2", "-3"}, g.Clip())
	does([]string{"-0"}, vmm.Sleep(vmm.SleepKeep, g))
	require.ErrorIs(t, watch(g), vmm.ErrAsleep)
	does([]string{"+0"}, vmm.Wake(g))
	does([]string{"+1"}, g.Grow(page))

	// What retires is mapped still. Growth takes back a part of it.
	s := stream(t, w.devs[0])
	vmm.SetNoWorker(w.devs[0], true)
	require.NoError(t, g.Grow(2*page))
	does([]string{"+2"}, g.UsedBy(s))
	does(nil, g.Clip())
	does(nil, g.Grow(page))
	again := w.register(g)
	require.Equal(t, []string{"+0", "+1", "+2"}, again.since(), "retiring memory, too")
	does([]string{"-2"}, vmm.Drain(w.devs[0]))

	again.stop()
	again.stop()
	require.Equal(t, []string{"-2", "-0", "-1"}, again.since())
	require.Empty(t, again.have)
	w.registries = w.registries[:1]
	vmm.SetNoWorker(w.devs[0], false)
	require.NoError(t, s.Close())
	does([]string{"-0", "-1"}, g.Close())
	r.stop()
	require.Empty(t, r.since())
	require.ErrorIs(t, watch(g), vmm.ErrClosed)
	w.end()
}

// watch begins and ends a watch of g.
func watch(g *vmm.Range) error {
	stop, err := g.Watch(vmm.Watch{Mapped: func(vmm.Segment) {}})
	if err == nil {
		stop()
	}
	return err
}

// TestWatchRefused: a Watch without functions, and none at all.
func TestWatchRefused(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, page)
	stop, err := g.Watch(vmm.Watch{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.Nil(t, stop)
	for _, half := range []vmm.Watch{{Mapped: func(vmm.Segment) {}}, {Unmapping: func(vmm.Segment) {}}} {
		stop, err := g.Watch(half)
		require.NoError(t, err)
		require.NoError(t, g.Grow(3*page))
		require.NoError(t, g.Clip())
		stop()
	}
	require.NoError(t, g.Close())
	w.end()
}

// TestWatchOrder: Mapped comes after the driver's calls and before anyone sees the chunk,
// Unmapping after the wait for work and before the unmap.
func TestWatchOrder(t *testing.T) {
	w := newWorld(t, 1)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page})
	var calls []string
	w.before = func(c drivertest.Call) error {
		if slices.Contains([]string{"Map", "SetAccess", "Unmap", "SyncIfActive"}, c.Name) {
			calls = append(calls, c.Name)
		}
		return nil
	}
	_, err := g.Watch(vmm.Watch{
		Mapped: func(vmm.Segment) {
			require.Zero(t, g.Cap())
			calls = append(calls, "mapped")
		},
		Unmapping: func(vmm.Segment) { calls = append(calls, "unmapping") },
	})
	require.NoError(t, err)
	require.NoError(t, g.Grow(page))
	require.Equal(t, []string{"Map", "SetAccess", "mapped"}, calls)
	calls = nil
	require.NoError(t, g.Clip())
	require.Equal(t, []string{"SyncIfActive", "unmapping", "Unmap"}, calls)
	require.NoError(t, g.Close())
	w.end()
}

// TestWatchOfAReservation: chunks that were imported, for reading, as a View has them.
func TestWatchOfAReservation(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	shared, err := d.Create(page, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	fd, err := shared.Export()
	require.NoError(t, err)
	c, err := d.Import(fd, page, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	require.NoError(t, os.NewFile(uintptr(fd), "chunk").Close())
	v, err := d.Reserve(8*page, vmm.ReserveOptions{ReadOnly: true})
	require.NoError(t, err)
	r := w.register(v)
	s := stream(t, d)
	require.NoError(t, v.Map(4*page, c, c))
	require.NoError(t, v.Map(0, c))
	require.Equal(t, []string{"+4", "+5", "+0"}, r.since())
	require.NoError(t, v.Unmap(4*page, page))
	require.NoError(t, v.Unmap(5*page, page))
	require.NoError(t, v.UnmapNow(0, page))
	require.Equal(t, []string{"-4", "-5", "-0"}, r.since())
	require.NoError(t, s.Close())
	require.NoError(t, shared.Close())
	require.NoError(t, c.Close())
	require.NoError(t, v.Close())
	w.end()
}

// TestWatchOfARefusedUnmap: the chunk stays mapped, and Mapped is called again.
func TestWatchOfARefusedUnmap(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, page)
	r := w.registries[0]
	require.NoError(t, g.Grow(page))
	does := func(call func() error, want ...string) {
		t.Helper()
		r.since()
		w.refuse("Unmap", 1, errInjected)
		require.ErrorIs(t, call(), errInjected)
		require.Equal(t, want, r.since())
		w.registered("")
	}
	does(g.Clip, "-1", "+1")
	does(func() error { return vmm.Sleep(vmm.SleepKeep, g) }, "-0", "-1", "+0", "+1")
	does(g.Close, "-0", "-1", "+0", "+1")
	require.NoError(t, g.Close())
	require.Equal(t, []string{"-0", "-1"}, r.since())
	w.end()
}

// TestWatchOfALostDevice: what is registered is taken back all the same.
func TestWatchOfALostDevice(t *testing.T) {
	mayLose(t)
	w := newWorld(t, 1)
	g := ranged(t, w, 2*page)
	lose(t, w, w.devs[0])
	require.ErrorIs(t, g.Close(), vmm.ErrDeviceLost)
	r := w.registries[0]
	require.Equal(t, []string{"+0", "+1", "-0", "-1"}, r.since())
	require.Empty(t, r.have)
}

// TestRegistryFindsWrongUnmapping: the registry of these tests finds an Unmapping that comes after
// the unmap, and one that does not come.
func TestRegistryFindsWrongUnmapping(t *testing.T) {
	for name, set := range map[string]func(*vmm.Device, bool){
		"none": vmm.SetNoUnmapping, "late": vmm.SetLateUnmapping,
	} {
		for what, call := range map[string]func(g *vmm.Range) error{
			"Clip":  (*vmm.Range).Clip,
			"Sleep": func(g *vmm.Range) error { return vmm.Sleep(vmm.SleepDrop, g) },
			"Close": (*vmm.Range).Close,
		} {
			w := newWorld(t, 1)
			g := ranged(t, w, page)
			require.NoError(t, g.Grow(page))
			r := w.registries[0]
			require.Empty(t, r.check())
			set(w.devs[0], true)
			require.NoError(t, call(g))
			require.NotEmpty(t, r.check(), "%s, %s", name, what)
			set(w.devs[0], false)
			w.registries = nil
			require.NoError(t, g.Close())
			w.end()
		}
	}
}

// TestRandomOpsFindWrongUnmapping: the random program finds both, too.
func TestRandomOpsFindWrongUnmapping(t *testing.T) {
	for name, set := range map[string]func(*vmm.Device, bool){
		"none": vmm.SetNoUnmapping, "late": vmm.SetLateUnmapping,
	} {
		w := newWorld(t, 2)
		set(w.devs[0], true)
		wrong, _ := randomops.Run(t, randomops.Options{
			Driver: w.drv, Devices: []int{0, 1}, Granule: page, Meddlers: 2, For: time.Second,
		}, 0)
		require.NotEmpty(t, wrong, name)
		set(w.devs[0], false)
		w.end()
	}
}

// TestWatchConcurrently: watches come and go while a range grows, is clipped, sleeps and closes.
func TestWatchConcurrently(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(8 * page)
	s := stream(t, d)
	for round := range 20 {
		g := newRange(t, d, vmm.RangeOptions{Max: 256 * page, Chunk: page, GrowAhead: uint64(round%3) * page})
		kept := w.register(g)
		var over atomic.Bool
		var wg sync.WaitGroup
		loop := func(f func(i int) error) {
			wg.Go(func() {
				for i := 0; i < 60 || !over.Load(); i++ {
					if err := f(i); errors.Is(err, vmm.ErrClosed) {
						return
					} else if err != nil && !errors.Is(err, vmm.ErrAsleep) && !errors.Is(err, vmm.ErrFull) {
						t.Error(err)
						return
					}
				}
			})
		}
		loop(func(int) error { return g.Append(pattern(page/2, 1)) })
		loop(func(i int) error { return g.Grow(uint64(i%4) * page) })
		loop(func(i int) error { _ = g.SetLen(0); return g.Clip() })
		loop(func(int) error {
			err := vmm.Sleep(vmm.SleepKeep, g)
			if again := vmm.Wake(g); err == nil {
				err = again
			}
			return err
		})
		if round%2 == 0 {
			loop(func(int) error { return g.UsedBy(s) })
		}
		for range 2 {
			loop(func(int) error {
				r := &registry{of: g, drv: w.inner, have: map[vmm.Ptr]uint64{}}
				stop, err := g.Watch(vmm.Watch{Mapped: r.mapped, Unmapping: r.unmapping})
				if err != nil {
					return err
				}
				wrong := r.check()
				stop()
				if r.wrong = append(wrong, r.wrong...); len(r.wrong)+len(r.have) > 0 {
					return fmt.Errorf("%v, and registered are %v", r.wrong, r.have)
				}
				return nil
			})
		}
		for range 10 + rand.IntN(50) {
			if wrong := kept.check(); len(wrong) > 0 {
				t.Error(wrong)
			}
		}
		for {
			if err := g.Close(); err == nil {
				break
			} else if !errors.Is(err, vmm.ErrBusy) {
				t.Error(err)
				break
			}
		}
		over.Store(true)
		wg.Wait()
		require.Empty(t, kept.check())
		require.Empty(t, kept.have)
		w.registries = nil
	}
	require.NoError(t, s.Close())
	w.end()
}

// TestMappedExports: Mapped can export its chunk, though the reservation's methods would wait.
func TestMappedExports(t *testing.T) {
	w, x := exporting(t)
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 64 * page, Chunk: 2 * page, Share: vmm.ShareFD})
	require.NoError(t, err)
	var shown []vmm.Segment
	_, err = g.Watch(vmm.Watch{Mapped: func(s vmm.Segment) {
		fd, err := s.ExportDMABuf(vmm.DMABufPCIe)
		require.NoError(t, err)
		require.Positive(t, fd)
		shown = append(shown, s)
	}})
	require.NoError(t, err)
	require.NoError(t, g.Grow(3*page))
	at := uint64(g.Ptr())
	require.Equal(t, [][2]uint64{{at, 2 * page}, {at + 2*page, 2 * page}}, x.spans)
	require.Equal(t, vmm.DMABufPCIe, x.flags)
	require.NoError(t, second(g.ExportDMABuf(0, page)))
	require.Zero(t, x.flags)
	require.NoError(t, second(g.ExportDMABuf(0, page, vmm.DMABufPCIe, 0)))
	require.Equal(t, vmm.DMABufPCIe, x.flags)
	w.refuse("ExportRange", 1, errInjected)
	require.ErrorIs(t, second(shown[0].ExportDMABuf()), errInjected)
	require.NoError(t, g.Close())
	require.ErrorIs(t, second(shown[0].ExportDMABuf()), vmm.ErrClosed)
	require.ErrorIs(t, second(vmm.Segment{}.ExportDMABuf()), vmm.ErrInvalid)

	private := ranged(t, w, page)
	require.ErrorIs(t, second(private.Segments()[0].ExportDMABuf()), vmm.ErrInvalid, "it may be cached")
	require.NoError(t, private.Close())
	w.end()
}
