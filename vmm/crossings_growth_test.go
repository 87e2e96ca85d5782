package vmm_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// awake checks that a range works as before.
func awake(t *testing.T, g *vmm.Range) {
	t.Helper()
	b := make([]byte, g.Len())
	require.NoError(t, g.Device().CopyOut(b, g.Ptr()))
	require.Equal(t, pattern(len(b), 7), b)
}

// growthScenes are the scenes of cached memory, growth ahead, queued clips and sleep.
func growthScenes() map[string]func(t *testing.T, w *world) error {
	// whileAsleep runs f on a range that sleeps. It still sleeps afterwards.
	whileAsleep := func(f func(w *world, g *vmm.Range) error) func(*testing.T, *world) error {
		return func(t *testing.T, w *world) error {
			g := ranged(t, w, 2*page)
			require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
			result := f(w, g)
			require.NoError(t, vmm.Wake(g))
			awake(t, g)
			require.NoError(t, g.Close())
			return result
		}
	}
	// whileRetiring runs f on a range whose last two of three pages retire behind a closed
	// gate, and on the stream with the gate.
	whileRetiring := func(f func(t *testing.T, g *vmm.Range, s *vmm.Stream, open func()) error) func(*testing.T, *world) error {
		return func(t *testing.T, w *world) error {
			g, s, open := queuedClip(t, w)
			result := f(t, g, s, open)
			open()
			require.NoError(t, g.Close())
			require.NoError(t, w.devs[0].Sync())
			require.NoError(t, s.Close())
			return result
		}
	}
	// whileAhead runs f while the device's goroutine makes memory for the range.
	whileAhead := func(f func(g *vmm.Range) error) func(*testing.T, *world) error {
		return func(t *testing.T, _ *world) error {
			w := stopAt(t, 1, "Create", 0)
			g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, GrowAhead: 4 * page})
			<-w.reached
			result := begun(func() error { return f(g) })
			w.let()
			err := <-result
			require.NoError(t, g.Close())
			w.end()
			return err
		}
	}
	b := []byte{1}
	return map[string]func(t *testing.T, w *world) error{
		"Append x asleep": whileAsleep(func(_ *world, g *vmm.Range) error { return g.Append(b) }),
		"Watch x asleep":  whileAsleep(func(_ *world, g *vmm.Range) error { return watch(g) }),
		"Watch x closed": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			require.NoError(t, g.Close())
			return watch(g)
		},
		"Grow x asleep":    whileAsleep(func(_ *world, g *vmm.Range) error { return g.Grow(1) }),
		"SetLen x asleep":  whileAsleep(func(_ *world, g *vmm.Range) error { return g.SetLen(0) }),
		"Clip x asleep":    whileAsleep(func(_ *world, g *vmm.Range) error { return g.Clip() }),
		"ReadAt x asleep":  whileAsleep(func(_ *world, g *vmm.Range) error { return second(g.ReadAt(b, 0)) }),
		"WriteAt x asleep": whileAsleep(func(_ *world, g *vmm.Range) error { return second(g.WriteAt(b, 0)) }),
		"WriteTo x asleep": whileAsleep(func(_ *world, g *vmm.Range) error { return second(g.WriteTo(io.Discard)) }),
		"Host x asleep":    whileAsleep(func(_ *world, g *vmm.Range) error { return second(g.Host()) }),
		"Hold x asleep":    whileAsleep(func(_ *world, g *vmm.Range) error { return second(g.Hold(0, 1)) }),
		"UsedBy x asleep": whileAsleep(func(w *world, g *vmm.Range) error {
			s := stream(w.t.(*testing.T), w.devs[0])
			return errors.Join(g.UsedBy(s), s.Close())
		}),
		"Grant x asleep":       whileAsleep(func(w *world, g *vmm.Range) error { return g.Grant(vmm.AccessRead, w.devs[1]) }),
		"Revoke x asleep":      whileAsleep(func(w *world, g *vmm.Range) error { return g.Revoke(w.devs[1]) }),
		"EnablePeers x asleep": whileAsleep(func(w *world, g *vmm.Range) error { return vmm.EnablePeers(vmm.AccessRead, w.devs, g) }),
		"CopyIn x asleep":      whileAsleep(func(w *world, g *vmm.Range) error { return w.devs[0].CopyIn(g.Ptr(), b) }),
		"Stream.Copy x asleep": whileAsleep(func(w *world, g *vmm.Range) error {
			s := stream(w.t.(*testing.T), w.devs[0])
			return errors.Join(s.Copy(g.Ptr(), g.Ptr()+page, 1), s.Close())
		}),
		"Sleep x asleep":              whileAsleep(func(_ *world, g *vmm.Range) error { return vmm.Sleep(vmm.SleepDrop, g) }),
		"Wake x asleep":               whileAsleep(func(_ *world, g *vmm.Range) error { return vmm.Wake(g) }),
		"Device.Close x asleep range": whileAsleep(func(w *world, _ *vmm.Range) error { return w.devs[0].Close() }),
		"Wake x no memory": whileAsleep(func(w *world, g *vmm.Range) error {
			w.devs[0].SetLimit(page)
			defer w.devs[0].SetLimit(0)
			return vmm.Wake(g)
		}),
		"Wake x captured": whileAsleep(func(w *world, g *vmm.Range) error {
			s := stream(w.t.(*testing.T), w.devs[0])
			end := captured(w.t.(*testing.T), w, s)
			err := vmm.Wake(g)
			end()
			return errors.Join(err, s.Close())
		}),
		"Wake x awake": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			before := w.picture(g)
			err := vmm.Wake(g)
			require.Equal(t, before, w.picture(g))
			require.NoError(t, g.Close())
			return err
		},
		"Close x asleep": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
			return g.Close()
		},
		"Wake x closed": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
			require.NoError(t, g.Close())
			return vmm.Wake(g)
		},
		"Sleep x held": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			release, err := g.Hold(0, 1)
			require.NoError(t, err)
			err = vmm.Sleep(vmm.SleepKeep, g)
			awake(t, g)
			release()
			require.NoError(t, g.Close())
			return err
		},
		"Sleep x captured": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			s := stream(t, w.devs[0])
			before := w.picture(g)
			end := captured(t, w, s)
			err := vmm.Sleep(vmm.SleepKeep, g)
			end()
			require.Equal(t, before, w.picture(g), "nothing changed")
			require.NoError(t, s.Close())
			require.NoError(t, g.Close())
			return err
		},
		"Sleep x queued work": func(t *testing.T, w *world) error {
			g := ranged(t, w, 2*page)
			s := stream(t, w.devs[0])
			open := work(t, w.devs[0], s.Raw(), g.Ptr())
			slept := begun(func() error { return vmm.Sleep(vmm.SleepDrop, g) })
			require.Empty(t, slept)
			open()
			err := <-slept
			require.NoError(t, w.devs[0].Sync())
			require.NoError(t, s.Close())
			require.NoError(t, g.Close())
			return err
		},
		"Grow x Sleep waits":   whileSleepWaits(func(g *vmm.Range) error { return g.Grow(1) }),
		"Append x Sleep waits": whileSleepWaits(func(g *vmm.Range) error { return g.Append([]byte{1}) }),
		"Sleep x granted": func(t *testing.T, w *world) error {
			g := ranged(t, w, 2*page)
			require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
			err := vmm.Sleep(vmm.SleepKeep, g)
			require.ErrorIs(t, w.devs[1].CopyOut(make([]byte, 1), g.Ptr()), vmm.ErrAsleep)
			require.ErrorIs(t, w.devs[1].Close(), vmm.ErrBusy, "the grant stands")
			require.NoError(t, vmm.Wake(g))
			require.NoError(t, w.devs[1].CopyOut(make([]byte, 2*page), g.Ptr()))
			require.ErrorIs(t, w.devs[1].CopyIn(g.Ptr(), b), vmm.ErrPermission)
			require.NoError(t, g.Close())
			return err
		},
		"Sleep x quarantined": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			w.refuse("SetAccess", 1, errInjected)
			w.refuse("Unmap", 1, errInjected)
			require.ErrorIs(t, g.Grow(page), errInjected)
			result := vmm.Sleep(vmm.SleepKeep, g)
			awake(t, g)
			require.NoError(t, g.Close())
			return result
		},
		"Sleep x Clip queued": whileRetiring(func(t *testing.T, g *vmm.Range, _ *vmm.Stream, open func()) error {
			slept := begun(func() error { return vmm.Sleep(vmm.SleepKeep, g) })
			require.Empty(t, slept, "it waits for the stream")
			open()
			err := <-slept
			require.Zero(t, g.Stats().Retiring)
			require.NoError(t, vmm.Wake(g))
			awake(t, g)
			return err
		}),
		"Clip x named stream busy": whileRetiring(func(t *testing.T, g *vmm.Range, _ *vmm.Stream, _ func()) error {
			require.NoError(t, g.Grow(page))
			return g.Clip()
		}),
		"Close x Clip queued": whileRetiring(func(t *testing.T, g *vmm.Range, _ *vmm.Stream, open func()) error {
			closed := begun(g.Close)
			require.Empty(t, closed, "it waits for the stream")
			open()
			return <-closed
		}),
		"CloseContext x Clip queued": whileRetiring(func(t *testing.T, g *vmm.Range, _ *vmm.Stream, _ func()) error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return g.CloseContext(ctx)
		}),
		"Grow x Clip queued": whileRetiring(func(t *testing.T, g *vmm.Range, _ *vmm.Stream, _ func()) error {
			err := g.Grow(4 * page)
			require.EqualValues(t, 2*page, g.Stats().Reclaimed)
			require.NoError(t, g.Append(pattern(4*page, 1)))
			return err
		}),
		"Device.Close x Clip queued": whileRetiring(func(_ *testing.T, g *vmm.Range, _ *vmm.Stream, _ func()) error {
			return g.Device().Close()
		}),
		"Trim x Clip queued": whileRetiring(func(t *testing.T, g *vmm.Range, _ *vmm.Stream, _ func()) error {
			freed, err := g.Device().Trim(0)
			require.Zero(t, freed)
			require.EqualValues(t, 2*page, g.Stats().Retiring)
			return err
		}),
		"Stream.Close x Clip queued": whileRetiring(func(t *testing.T, g *vmm.Range, s *vmm.Stream, open func()) error {
			closed := begun(s.Close)
			require.Empty(t, closed, "it waits for its work")
			open()
			err := <-closed
			require.NoError(t, vmm.Drain(g.Device()))
			require.Zero(t, g.Stats().Retiring)
			return err
		}),
		"Device.Close x cached memory": func(t *testing.T, w *world) error {
			w.devs[0].SetReleaseThreshold(8 * page)
			keepChunks(t, w, 2, 3)
			require.EqualValues(t, 5*page, w.devs[0].Stats().Cached)
			return w.devs[0].Close()
		},
		"Grow x no memory but what is cached": func(t *testing.T, w *world) error {
			d := w.devs[0]
			d.SetReleaseThreshold(8 * page)
			keepChunks(t, w, 1, 1, 1, 1)
			d.SetLimit(4 * page)
			g := newRange(t, d, vmm.RangeOptions{Max: 8 * page, Chunk: 4 * page})
			err := g.Grow(4 * page)
			require.NoError(t, g.Close())
			d.SetLimit(0)
			return err
		},
		"Create x limit reached": func(t *testing.T, w *world) error {
			w.devs[0].SetLimit(page)
			defer w.devs[0].SetLimit(0)
			return second(w.devs[0].Create(2*page, vmm.Prop{}))
		},
		"Segment.Chunk x clipped and cached": func(t *testing.T, w *world) error {
			w.devs[0].SetReleaseThreshold(8 * page)
			g := ranged(t, w, page)
			s := g.Segments()[0]
			require.NoError(t, g.SetLen(0))
			require.NoError(t, g.Clip())
			require.NoError(t, g.Append(pattern(page, 1)), "the same memory again")
			require.NotZero(t, g.Stats().Hits)
			result := second(s.Chunk())
			require.NoError(t, g.Close())
			return result
		},
		"Grow x growth ahead":  whileAhead(func(g *vmm.Range) error { return g.Grow(6 * page) }),
		"Clip x growth ahead":  whileAhead((*vmm.Range).Clip),
		"Close x growth ahead": whileAhead((*vmm.Range).Close),
		"Sleep x growth ahead": whileAhead(func(g *vmm.Range) error { return vmm.Sleep(vmm.SleepKeep, g) }),
		"Append x growth ahead failed": func(t *testing.T, w *world) error {
			w.refuse("Create", 1, errInjected)
			g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page, GrowAhead: 4 * page})
			for g.Stats().GrowAheadFailures == 0 {
				runtime.Gosched()
			}
			require.Zero(t, g.Cap())
			err := g.Append(pattern(page, 1))
			require.NoError(t, g.Close())
			return err
		},
	}
}

// whileSleepWaits does something to a range whose Sleep waits for a stream.
func whileSleepWaits(do func(g *vmm.Range) error) func(t *testing.T, w *world) error {
	return func(t *testing.T, w *world) error {
		g := ranged(t, w, 2*page)
		s := stream(t, w.devs[0])
		open := work(t, w.devs[0], s.Raw(), g.Ptr())
		slept := begun(func() error { return vmm.Sleep(vmm.SleepDrop, g) })
		for !g.Stats().Asleep {
			runtime.Gosched()
		}
		result := within(t, begun(func() error { return do(g) }), "it waits for Sleep")
		open()
		require.NoError(t, <-slept)
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
		return result
	}
}
