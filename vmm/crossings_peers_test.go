package vmm_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// peerScenes are the rows about plans and peers.
func peerScenes() map[string]func(t *testing.T, w *world) error {
	// stale applies a plan for two ranges after the second was changed. Unless all works, the
	// first is as before.
	stale := func(spoil func(w *world, g *vmm.Range) error) func(*testing.T, *world) error {
		return func(t *testing.T, w *world) error {
			first, g := ranged(t, w, page), ranged(t, w, page)
			p, err := vmm.PlanPeers(vmm.AccessRead, w.devs[1:], first, g)
			require.NoError(t, err)
			require.NoError(t, spoil(w, g))
			before := w.picture(first)
			result := p.Apply()
			if result != nil {
				require.Equal(t, before, w.picture(first), "nothing changed")
			}
			closeAll(t, first, g)
			return result
		}
	}
	// during runs f on a range granted to the peer while a stream is captured.
	during := func(f func(w *world, g *vmm.Range) error) func(*testing.T, *world) error {
		return func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			end := captured(t, w, s)
			before := w.picture(g)
			result := f(w, g)
			if result != nil {
				require.Equal(t, before, w.picture(g), "nothing changed")
			}
			end()
			require.NoError(t, s.Close())
			closeAll(t, g)
			return result
		}
	}
	return map[string]func(t *testing.T, w *world) error{
		"PlanPeers x asleep": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
			p, err := vmm.PlanPeers(vmm.AccessRead, w.devs, g)
			require.ErrorIs(t, p.Err(), vmm.ErrAsleep, "the plan says so")
			closeAll(t, g)
			return err
		},
		"Plan.Apply x asleep": stale(func(_ *world, g *vmm.Range) error { return vmm.Sleep(vmm.SleepKeep, g) }),
		"Plan.Apply x grown since": stale(func(_ *world, g *vmm.Range) error {
			return g.Append(pattern(3*page, 1))
		}),
		"Plan.Apply x granted since":      stale(func(w *world, g *vmm.Range) error { return g.Grant(vmm.AccessRead, w.devs[1]) }),
		"Plan.Apply x range closed since": stale(func(_ *world, g *vmm.Range) error { return g.Close() }),
		"Plan.Apply x device closed since": stale(func(w *world, _ *vmm.Range) error {
			return w.devs[1].Close()
		}),
		"CopyPeer x captured": func(t *testing.T, w *world) error {
			to, from := twoTanks(t, w)
			s := stream(t, w.devs[0])
			require.NoError(t, s.BeginCapture())
			result := s.CopyPeer(to.r.Ptr(), w.devs[0], from.r.Ptr(), w.devs[1], page)
			g, err := s.EndCapture()
			require.NoError(t, err)
			require.NoError(t, g.Close())
			require.NoError(t, s.Close())
			closeTanks(t, to, from)
			return result
		},
		"CopyPeer x asleep": func(t *testing.T, w *world) error {
			to, from := twoTanks(t, w)
			g, s := ranged(t, w, page), stream(t, w.devs[0])
			require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
			result := s.CopyPeer(g.Ptr(), w.devs[0], from.r.Ptr(), w.devs[1], page)
			require.NoError(t, vmm.Wake(g))
			closeAll(t, g)
			require.NoError(t, s.Close())
			closeTanks(t, to, from)
			return result
		},
		"Unmap x CopyPeer queued": func(t *testing.T, w *world) error {
			to, from := twoTanks(t, w)
			s := stream(t, w.devs[0])
			open := gate(t, s.Device(), s.Raw())
			require.NoError(t, s.CopyPeer(to.r.Ptr(), w.devs[0], from.r.Ptr(), w.devs[1], page))
			unmapped := begun(func() error { return from.r.Unmap(0, page) })
			require.Empty(t, unmapped, "the work of another device's stream")
			open()
			result := <-unmapped
			require.NoError(t, s.Sync())
			require.NoError(t, s.Close())
			closeTanks(t, to, from)
			return result
		},
		"EnablePeers x captured": during(func(w *world, g *vmm.Range) error {
			return vmm.EnablePeers(vmm.AccessReadWrite, w.devs, g)
		}),
		"EnablePeers with none x captured": during(func(w *world, g *vmm.Range) error {
			return vmm.EnablePeers(vmm.AccessNone, w.devs[1:], g)
		}),
		"EnablePeers x Clip waits": func(t *testing.T, w *world) error {
			g := ranged(t, w, 2*page)
			require.NoError(t, g.Grow(4*page))
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			open := work(t, w.devs[0], s.Raw(), g.Ptr()+vmm.Ptr(g.Cap()-page))
			clipped := make(chan error, 1)
			go func() { clipped <- g.Clip() }()
			for g.Stats().Retiring == 0 {
				runtime.Gosched()
			}
			result := vmm.EnablePeers(vmm.AccessRead, w.devs, g)
			require.NoError(t, g.Grow(4*page), "what comes back")
			require.NoError(t, w.devs[1].CopyOut(make([]byte, page), g.Ptr()+vmm.Ptr(g.Cap()-page)), "has the grant")
			open()
			require.NoError(t, <-clipped)
			for _, d := range w.devs {
				require.NoError(t, d.Sync())
			}
			require.NoError(t, s.Close())
			closeAll(t, g)
			return result
		},
		"EnablePeers x growth ahead": func(t *testing.T, w *world) error {
			g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 64 * page, GrowAhead: 8 * page})
			require.NoError(t, err)
			result := vmm.EnablePeers(vmm.AccessRead, w.devs, g)
			require.NoError(t, g.Append(pattern(page, 1)))
			for g.Cap()-g.Len() < 4*page {
				runtime.Gosched()
			}
			require.NoError(t, w.devs[1].CopyOut(make([]byte, page), g.Ptr()+vmm.Ptr(g.Cap()-page)))
			closeAll(t, g)
			return result
		},
		"EnablePeers x quarantined": func(t *testing.T, w *world) error {
			g := ranged(t, w, page)
			w.arm(2, 3) // after CanAccessPeer: setting access, and setting it back
			require.ErrorIs(t, g.Grant(vmm.AccessReadWrite, w.devs[1]), errInjected)
			w.disarm()
			require.NotZero(t, w.devs[0].Stats().Quarantined)
			result := vmm.EnablePeers(vmm.AccessReadWrite, w.devs, g)
			require.Zero(t, w.devs[0].Stats().Quarantined, "healed")
			closeAll(t, g)
			return result
		},
		"Undo of EnablePeers x Grant of another": func(t *testing.T, w *world) error {
			g, h := ranged(t, w, page), ranged(t, w, page)
			var calls atomic.Int32
			granted := make(chan error, 1)
			w.before = func(c drivertest.Call) error {
				if c.Name != "SetAccess" || calls.Add(1) != 2 {
					return nil
				}
				go func() { granted <- g.Grant(vmm.AccessRead, w.devs[1]) }()
				return errInjected
			}
			require.ErrorIs(t, vmm.EnablePeers(vmm.AccessRead, w.devs, g, h), errInjected)
			require.NoError(t, <-granted)
			w.before = nil
			result := w.devs[1].CopyOut(make([]byte, page), g.Ptr())
			closeAll(t, g, h)
			return result
		},
		"Device.Close x legacy peers": func(t *testing.T, _ *world) error {
			w := newLegacyWorld(t, 2)
			disable, err := vmm.EnableLegacyPeers(w.devs...)
			require.NoError(t, err)
			result := w.devs[1].Close()
			require.NoError(t, disable())
			w.end()
			return result
		},
		"EnableLegacyPeers x enabled by another library": func(t *testing.T, _ *world) error {
			w := newLegacyWorld(t, 2)
			theirs := raw(t, w.devs[0]).(driver.LegacyPeers)
			require.NoError(t, theirs.EnablePeer(1))
			disable, result := vmm.EnableLegacyPeers(w.devs...)
			require.NoError(t, disable())
			require.NoError(t, theirs.DisablePeer(1), "it is still theirs")
			w.end()
			return result
		},
		"Disabling legacy peers x captured": func(t *testing.T, _ *world) error {
			w := newLegacyWorld(t, 2)
			disable, err := vmm.EnableLegacyPeers(w.devs...)
			require.NoError(t, err)
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			c := raw(t, w.devs[0]).(driver.Grapher)
			require.NoError(t, c.BeginCapture(s.Raw(), driver.CaptureRelaxed))
			result := disable()
			require.NoError(t, endCapture(c, s.Raw()), "the capture was destroyed")
			require.NoError(t, disable())
			require.NoError(t, s.Close())
			w.end()
			return result
		},
		"Disabling legacy peers x enabled once more": func(t *testing.T, _ *world) error {
			w := newLegacyWorld(t, 2)
			disable, err := vmm.EnableLegacyPeers(w.devs...)
			require.NoError(t, err)
			more, err := vmm.EnableLegacyPeers(w.devs...)
			require.NoError(t, err)
			result := disable()
			require.Equal(t, 2, w.drv.pairs())
			require.NoError(t, more())
			w.end()
			return result
		},
	}
}
