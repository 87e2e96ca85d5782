package vmm_test

import (
	"bufio"
	"context"
	"errors"
	"maps"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// TestCrossings runs the table of crossings in docs/contributing/architecture.md: every operation of
// a row has a scene here, every scene is in a row, and the outcome is that of the row.
func TestCrossings(t *testing.T) {
	rows := crossings(t)
	scenes := crossingScenes()
	maps.Copy(scenes, growthScenes())
	maps.Copy(scenes, peerScenes())
	maps.Copy(scenes, kernelScenes())
	maps.Copy(scenes, supplyScenes())
	maps.Copy(scenes, mirrorScenes())
	for what := range scenes {
		require.Contains(t, rows, what, "not in the table")
	}
	for what, outcome := range rows {
		t.Run(what, func(t *testing.T) {
			scene := scenes[what]
			require.NotNil(t, scene, "no scene for this row")
			w := newWorld(t, 2)
			require.Equal(t, outcome, outcomeOf(scene(t, w)))
			w.end()
		})
	}
}

// crossings reads the table: operations, state, outcome.
func crossings(t *testing.T) map[string]string {
	t.Helper()
	f, err := os.Open("../docs/contributing/architecture.md")
	require.NoError(t, err)
	defer f.Close()
	rows := map[string]string{}
	inside := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			inside = strings.Contains(line, "Crossings")
		}
		cells := strings.Split(line, "|")
		if !inside || len(cells) < 5 || strings.Contains(line, "---") || strings.Contains(line, "operation") {
			continue
		}
		for operation := range strings.SplitSeq(cells[1], ",") {
			what := strings.TrimSpace(operation) + " x " + strings.TrimSpace(cells[2])
			require.NotContains(t, rows, what, "there twice")
			rows[what] = strings.TrimSpace(cells[3])
		}
	}
	return rows
}

func outcomeOf(err error) string {
	for name, kind := range map[string]error{
		"ErrBusy": vmm.ErrBusy, "ErrCapturing": vmm.ErrCapturing, "ErrClosed": vmm.ErrClosed,
		"ErrAsleep": vmm.ErrAsleep, "ErrOutOfMemory": vmm.ErrOutOfMemory, "ErrBounds": vmm.ErrBounds, "ErrNotSupported": vmm.ErrNotSupported, "ErrPermission": vmm.ErrPermission, "ErrDeviceLost": vmm.ErrDeviceLost, "the error that caused it": errInjected, "given up": context.Canceled,
	} {
		if errors.Is(err, kind) {
			return name
		}
	}
	if err != nil {
		return err.Error()
	}
	return "works"
}

// captured begins a capture on a stream of the device. At cleanup it ends the capture and
// checks that it was not destroyed.
func captured(t *testing.T, w *world, s *vmm.Stream) (end func()) {
	t.Helper()
	c := raw(t, w.devs[0]).(driver.Grapher)
	runtime.LockOSThread() // a capture ends on the thread where it began
	require.NoError(t, c.BeginCapture(s.Raw(), driver.CaptureGlobal))
	return func() {
		require.NoError(t, endCapture(c, s.Raw()), "the capture was destroyed")
		runtime.UnlockOSThread()
	}
}

func crossingScenes() map[string]func(t *testing.T, w *world) error {
	// duringCapture runs f on a range while a stream that it has not named is captured.
	duringCapture := func(f func(w *world, g *vmm.Range) error) func(*testing.T, *world) error {
		return func(t *testing.T, w *world) error {
			g := ranged(t, w, 2*page)
			require.NoError(t, g.Grow(3*page))
			require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[1]))
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			end := captured(t, w, s)
			before := w.picture(g)
			err = f(w, g)
			if err != nil {
				require.Equal(t, before, w.picture(g), "nothing changed")
			}
			end()
			require.NoError(t, s.Close())
			require.NoError(t, g.Close())
			return err
		}
	}
	// whileHeld runs f on a range whose first page and a half are held.
	whileHeld := func(f func(g *vmm.Range) error) func(*testing.T, *world) error {
		return func(t *testing.T, w *world) error {
			g := ranged(t, w, 2*page)
			require.NoError(t, g.Grow(3*page))
			release, err := g.Hold(0, page+page/2)
			require.NoError(t, err)
			err = f(g)
			release()
			require.NoError(t, g.Close())
			return err
		}
	}
	// whileClipping runs f on a range whose Clip waits for a closed gate.
	whileClipping := func(f func(w *world, g *vmm.Range) error) func(*testing.T, *world) error {
		return func(t *testing.T, w *world) error {
			g := ranged(t, w, 2*page)
			require.NoError(t, g.Grow(4*page))
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			require.NoError(t, g.UsedBy(s))
			open := work(t, w.devs[0], s.Raw(), g.Ptr()+vmm.Ptr(g.Cap()-page))
			clipped := make(chan error, 1)
			go func() { clipped <- g.Clip() }()
			for g.Stats().Retiring == 0 {
				runtime.Gosched()
			}
			err = f(w, g)
			open()
			require.NoError(t, <-clipped)
			require.NoError(t, w.devs[0].Sync())
			require.NoError(t, s.Close())
			require.NoError(t, g.Close())
			return err
		}
	}
	return map[string]func(t *testing.T, w *world) error{
		"SetLen below x held": whileHeld(func(g *vmm.Range) error { return g.SetLen(page) }),
		"SetLen above x held": whileHeld(func(g *vmm.Range) error { return g.SetLen(page + page/2) }),
		"Clip x held":         whileHeld((*vmm.Range).Clip),
		"Grow x held":         whileHeld(func(g *vmm.Range) error { return g.Grow(9 * page) }),
		"Close x held":        whileHeld((*vmm.Range).Close),
		"Watch x captured":    duringCapture(func(_ *world, g *vmm.Range) error { return watch(g) }),
		"Watch x Clip waits":  whileClipping(func(_ *world, g *vmm.Range) error { return watch(g) }),
		"Grow x captured":     duringCapture(func(_ *world, g *vmm.Range) error { return g.Grow(9 * page) }),
		"Append x captured":   duringCapture(func(_ *world, g *vmm.Range) error { return g.Append([]byte{1}) }),
		"WriteAt x captured":  duringCapture(func(_ *world, g *vmm.Range) error { _, err := g.WriteAt(pattern(2, 7)[:1], 0); return err }),
		"ReadAt x captured":   duringCapture(func(_ *world, g *vmm.Range) error { _, err := g.ReadAt(make([]byte, 1), 0); return err }),
		"Clip x captured":     duringCapture(func(_ *world, g *vmm.Range) error { return g.Clip() }),
		"Close x captured":    duringCapture(func(_ *world, g *vmm.Range) error { return g.Close() }),
		"Grant x captured":    duringCapture(func(w *world, g *vmm.Range) error { return g.Grant(vmm.AccessReadWrite, w.devs[1]) }),
		"Grant less x captured": duringCapture(func(w *world, g *vmm.Range) error {
			return g.Grant(vmm.AccessRead, w.devs[1])
		}),
		"Revoke x captured":      duringCapture(func(w *world, g *vmm.Range) error { return g.Revoke(w.devs[1]) }),
		"Device.Sync x captured": duringCapture(func(w *world, _ *vmm.Range) error { return w.devs[0].Sync() }),
		"Clip x another stream captured": func(t *testing.T, w *world) error {
			g := ranged(t, w, 2*page)
			require.NoError(t, g.Grow(3*page))
			named, err := w.devs[0].NewStream()
			require.NoError(t, err)
			require.NoError(t, g.UsedBy(named))
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			end := captured(t, w, s)
			result := g.Clip()
			end()
			require.NoError(t, s.Close())
			require.NoError(t, named.Close())
			require.NoError(t, g.Close())
			return result
		},
		"Clip x named stream captured": func(t *testing.T, w *world) error {
			g := ranged(t, w, 2*page)
			require.NoError(t, g.Grow(3*page))
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			require.NoError(t, g.UsedBy(s))
			require.NoError(t, s.BeginCapture())
			result := g.Clip()
			require.NotZero(t, g.Stats().Retiring, "until the capture ends")
			finishCapture(t, s)
			require.NoError(t, s.Close())
			require.NoError(t, g.Close())
			return result
		},
		"Clip x named stream captured by another library": func(t *testing.T, w *world) error {
			g := ranged(t, w, 2*page)
			require.NoError(t, g.Grow(3*page))
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			require.NoError(t, g.UsedBy(s))
			end := captured(t, w, s)
			capacity := g.Cap()
			result := g.Clip()
			require.Equal(t, capacity, g.Cap())
			end()
			require.NoError(t, s.Close())
			require.NoError(t, g.Close())
			return result
		},
		"Stream.Close x captured": func(t *testing.T, w *world) error {
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			end := captured(t, w, s)
			result := s.Close()
			end()
			require.NoError(t, s.Close())
			return result
		},
		"Stream.Sync x captured": func(t *testing.T, w *world) error {
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			end := captured(t, w, s)
			result := s.Sync()
			end()
			require.NoError(t, s.Close())
			return result
		},
		"Grow x Clip waits": whileClipping(func(_ *world, g *vmm.Range) error {
			capacity := g.Cap()
			err := g.Grow(page)
			if g.Cap() == capacity || g.Stats().Reclaimed == 0 {
				return errors.New("not taken back")
			}
			return err
		}),
		"Grant x Clip waits": whileClipping(func(w *world, g *vmm.Range) error { return g.Grant(vmm.AccessRead, w.devs[1]) }),
		"CopyIn above Cap x Clip waits": whileClipping(func(w *world, g *vmm.Range) error {
			return w.devs[0].CopyIn(g.Ptr()+vmm.Ptr(g.Cap()), []byte{1})
		}),
		"CloseContext x queued work": func(t *testing.T, w *world) error {
			g := ranged(t, w, 2*page)
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			open := work(t, w.devs[0], s.Raw(), g.Ptr())
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			result := g.CloseContext(ctx)
			closed := make(chan error, 1)
			go func() { closed <- w.devs[0].Close() }()
			open()
			require.ErrorIs(t, <-closed, vmm.ErrBusy, "it joined the close; the stream is still open")
			require.ErrorIs(t, g.Append([]byte{1}), vmm.ErrClosed)
			require.NoError(t, s.Close())
			return result
		},
		"Append x Close given up": func(t *testing.T, w *world) error {
			g := ranged(t, w, 2*page)
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			open := work(t, w.devs[0], s.Raw(), g.Ptr())
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, g.CloseContext(ctx), context.Canceled)
			for w.devs[0].Stats().Retiring == 0 { // the close has not begun yet
				runtime.Gosched()
			}
			result := g.Append([]byte{1})
			open()
			require.NoError(t, g.Close())
			require.NoError(t, s.Close())
			return result
		},
		"Hold x Unmap waits": func(t *testing.T, w *world) error {
			r := holed(t, w)
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			open := work(t, w.devs[0], s.Raw(), r.Ptr())
			unmapped := make(chan error, 1)
			go func() { unmapped <- r.Unmap(0, 3*page) }()
			for w.devs[0].Stats().Retiring == 0 {
				runtime.Gosched()
			}
			_, result := r.Hold(0, page)
			open()
			require.NoError(t, <-unmapped)
			require.NoError(t, s.Close())
			require.NoError(t, r.Close())
			return result
		},
		"Unmap x quarantined": func(t *testing.T, w *world) error {
			r := holed(t, w)
			c := chunk(t, w, page)
			w.arm(2, 3) // SetAccess, and the Unmap that undoes the mapping
			require.ErrorIs(t, r.Map(3*page, c), errInjected)
			w.disarm()
			result := r.Unmap(3*page, page)
			require.NoError(t, c.Close())
			require.NoError(t, r.Close())
			return result
		},
		"UnmapNow x quarantined": func(t *testing.T, w *world) error {
			r := holed(t, w)
			c := chunk(t, w, page)
			w.arm(2, 3) // SetAccess, and the Unmap that undoes the mapping
			require.ErrorIs(t, r.Map(3*page, c), errInjected)
			w.disarm()
			result := r.UnmapNow(3*page, page)
			require.NoError(t, c.Close())
			require.NoError(t, r.Close())
			return result
		},
		"UnmapNow x captured": func(t *testing.T, w *world) error {
			r, s := holed(t, w), stream(t, w.devs[0])
			end := captured(t, w, s)
			result := r.UnmapNow(0, 3*page)
			end()
			require.NoError(t, s.Close())
			require.NoError(t, r.Close())
			return result
		},
		"UnmapNow x queued work elsewhere": func(t *testing.T, w *world) error {
			r, s := holed(t, w), stream(t, w.devs[0])
			open := work(t, w.devs[0], s.Raw(), r.Ptr()+8*page)
			result := r.UnmapNow(0, 3*page)
			open()
			require.NoError(t, s.Close())
			require.NoError(t, r.Close())
			return result
		},
		"UnmapNow x held": func(t *testing.T, w *world) error {
			r := holed(t, w)
			release, err := r.Hold(page, 1)
			require.NoError(t, err)
			result := r.UnmapNow(0, 3*page)
			release()
			require.NoError(t, r.Close())
			return result
		},
		"Grant x quarantined": func(t *testing.T, w *world) error {
			r := holed(t, w)
			w.arm(3, 4) // the second stretch, and setting the first one back
			require.ErrorIs(t, r.Grant(vmm.AccessRead, w.devs[1]), errInjected)
			w.disarm()
			require.NotZero(t, w.devs[0].Stats().Quarantined)
			result := r.Grant(vmm.AccessRead, w.devs[1])
			require.Zero(t, w.devs[0].Stats().Quarantined, "healed")
			require.NoError(t, r.Close())
			return result
		},
		"Device.Close x open range": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			err := w.devs[0].Close()
			require.ErrorContains(t, err, "fault_test.go", "it says where the range was made")
			require.NoError(t, g.Append([]byte{1}), "and closed nothing")
			require.NoError(t, g.Close())
			return err
		},
		"Device.Close x granted": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
			err := w.devs[1].Close()
			require.ErrorContains(t, err, "grant of memory of "+w.devs[0].String())
			require.NoError(t, g.Close())
			return err
		},
		"Grow x granted": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
			require.NoError(t, g.Append(pattern(3*page, 1)))
			for _, s := range g.Segments() {
				require.NoError(t, w.devs[1].CopyOut(make([]byte, s.Size), s.Addr))
				require.ErrorIs(t, w.devs[1].CopyIn(s.Addr, []byte{1}), vmm.ErrPermission)
			}
			return g.Close()
		},
		"Chunk.Close x mapped": func(t *testing.T, w *world) error {
			r := holed(t, w) // closes its chunks
			require.NoError(t, w.devs[0].CopyIn(r.Ptr(), pattern(page, 3)))
			return r.Close()
		},
		"Close x Close": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			open := work(t, w.devs[0], s.Raw(), g.Ptr())
			results := make(chan error, 2)
			for range 2 {
				go func() { results <- g.Close() }()
			}
			open()
			require.NoError(t, <-results)
			require.NoError(t, s.Close())
			return <-results
		},
		"Stream.Close x UsedBy": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			require.NoError(t, g.Grow(2*page))
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			require.NoError(t, g.UsedBy(s))
			open := work(t, w.devs[0], s.Raw(), g.Ptr()+page)
			closed := make(chan error, 1)
			go func() { closed <- s.Close() }()
			open()
			result := <-closed
			require.NoError(t, g.Clip(), "nothing named is left, and nothing queued")
			require.NoError(t, w.devs[0].Sync())
			require.NoError(t, g.Close())
			return result
		},
	}
}
