package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// kernelScenes are the crossings of launches, graphs and modules with what happens to memory.
func kernelScenes() map[string]func(t *testing.T, w *world) error {
	// things is what a scene works with. All of it is closed afterwards.
	type things struct {
		g *vmm.Range
		s *vmm.Stream
		m *vmm.Module
		f *vmm.Function
		x *vmm.GraphExec
	}
	with := func(f func(t *testing.T, w *world, a things) error) func(*testing.T, *world) error {
		return func(t *testing.T, w *world) error {
			a := things{g: zeroed(t, w.devs[0]), s: stream(t, w.devs[0])}
			a.m, a.f = adder(t, w.devs[0])
			graph := capturedAdd(t, a.s, a.f, a.g)
			a.x = executable(t, graph)
			result := f(t, w, a)
			require.NoError(t, w.devs[0].Sync())
			for _, c := range []interface{ Close() error }{a.x, graph, a.g, a.s, a.m} {
				require.NoError(t, c.Close())
			}
			return result
		}
	}
	launch := func(a things) error {
		return a.f.Launch(a.s, addLaunch(a.g.Ptr(), 1), uses(argOf(a.g)))
	}
	clipped := func(t *testing.T, a things) {
		t.Helper()
		require.NoError(t, a.g.SetLen(0))
		require.NoError(t, a.g.Clip())
	}
	return map[string]func(*testing.T, *world) error{
		"Launch x captured": with(func(t *testing.T, _ *world, a things) error {
			require.NoError(t, a.s.BeginCapture())
			err := launch(a)
			graph, ended := a.s.EndCapture()
			require.NoError(t, ended)
			require.NoError(t, graph.Close())
			return err
		}),
		"Launch x asleep": with(func(t *testing.T, _ *world, a things) error {
			require.NoError(t, vmm.Sleep(vmm.SleepKeep, a.g))
			return launch(a)
		}),
		"Launch x closed": with(func(t *testing.T, _ *world, a things) error {
			arg := argOf(a.g)
			require.NoError(t, a.g.Close())
			return a.f.Launch(a.s, addLaunch(a.g.Ptr(), 1), uses(arg))
		}),
		"Launch x clipped": with(func(t *testing.T, _ *world, a things) error {
			arg := argOf(a.g)
			clipped(t, a)
			return a.f.Launch(a.s, addLaunch(a.g.Ptr(), 1), uses(arg))
		}),
		"Launch x module closed": with(func(t *testing.T, _ *world, a things) error {
			require.NoError(t, a.m.Close())
			return launch(a)
		}),
		"GraphExec.Launch x clipped": with(func(t *testing.T, _ *world, a things) error {
			clipped(t, a)
			return a.x.Launch(a.s)
		}),
		"GraphExec.Launch x asleep": with(func(t *testing.T, _ *world, a things) error {
			require.NoError(t, vmm.Sleep(vmm.SleepKeep, a.g))
			return a.x.Launch(a.s)
		}),
		"GraphExec.Launch x closed": with(func(t *testing.T, _ *world, a things) error {
			require.NoError(t, a.g.Close())
			return a.x.Launch(a.s)
		}),
		"GraphExec.Launch x grown since": with(func(t *testing.T, _ *world, a things) error {
			require.NoError(t, a.g.Grow(8*page))
			return a.x.Launch(a.s)
		}),
		"GraphExec.Launch x captured": with(func(t *testing.T, _ *world, a things) error {
			require.NoError(t, a.s.BeginCapture())
			err := a.x.Launch(a.s)
			graph, ended := a.s.EndCapture()
			require.NoError(t, ended)
			require.NoError(t, graph.Close())
			return err
		}),
		"GraphExec.Launch x module closed": with(func(t *testing.T, _ *world, a things) error {
			require.NoError(t, a.m.Close())
			return a.x.Launch(a.s)
		}),
		"Module.Close x captured": with(func(t *testing.T, _ *world, a things) error {
			require.NoError(t, a.s.BeginCapture())
			err := a.m.Close()
			graph, ended := a.s.EndCapture()
			require.NoError(t, ended)
			require.NoError(t, graph.Close())
			return err
		}),
		"Module.Close x queued work": with(func(t *testing.T, _ *world, a things) error {
			require.NoError(t, launch(a))
			return a.m.Close()
		}),
		"Device.Close x graph": with(func(_ *testing.T, w *world, _ things) error { return w.devs[0].Close() }),
	}
}
