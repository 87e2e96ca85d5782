package vmm_test

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// capturedAdd is a graph that fills the first page of g with ones and adds 2 to each word.
func capturedAdd(t *testing.T, s *vmm.Stream, f *vmm.Function, g *vmm.Range) *vmm.Graph {
	t.Helper()
	require.NoError(t, s.BeginCapture())
	require.NoError(t, s.Fill(g.Ptr(), 1, 4, page/4))
	require.NoError(t, f.Launch(s, addLaunch(g.Ptr(), 2), uses(argOf(g))))
	graph, err := s.EndCapture()
	require.NoError(t, err)
	t.Cleanup(func() { _ = graph.Close() })
	return graph
}

func executable(t *testing.T, g *vmm.Graph) *vmm.GraphExec {
	t.Helper()
	x, err := g.Instantiate()
	require.NoError(t, err)
	t.Cleanup(func() { _ = x.Close() })
	return x
}

func TestGraph(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, other, s := zeroed(t, d), zeroed(t, d), stream(t, d)
	m, f := adder(t, d)
	graph := capturedAdd(t, s, f, g)
	require.NoError(t, s.Sync())
	require.Zero(t, wordAt(t, g), "captured work does not run")
	x := executable(t, graph)
	for range 2 {
		require.NoError(t, x.Launch(s))
	}
	require.NoError(t, s.Sync())
	require.Equal(t, uint32(3), wordAt(t, g))

	// An update moves the work to other memory.
	second := capturedAdd(t, s, f, other)
	require.NoError(t, x.Update(second))
	require.NoError(t, graph.Close())
	require.NoError(t, second.Close(), "what was made of it stays")
	require.NoError(t, g.Close(), "which the graph does not use any more")
	require.NoError(t, x.Launch(s))
	require.NoError(t, s.Sync())
	require.Equal(t, uint32(3), wordAt(t, other))

	// Only the same work in the same order will do.
	require.NoError(t, s.BeginCapture())
	require.NoError(t, s.Fill(other.Ptr(), 1, 4, page/4))
	third, err := s.EndCapture()
	require.NoError(t, err)
	require.ErrorIs(t, x.Update(third), vmm.ErrInvalid)
	require.NoError(t, x.Launch(s), "it stays as it was")
	require.NoError(t, s.Sync())

	_, err = graph.Instantiate()
	require.ErrorIs(t, err, vmm.ErrClosed)
	require.ErrorIs(t, x.Update(graph), vmm.ErrClosed)
	require.ErrorIs(t, d.Close(), vmm.ErrBusy)
	require.NoError(t, m.Close())
	require.ErrorIs(t, x.Launch(s), vmm.ErrClosed, "the module")
	for _, c := range []interface{ Close() error }{third, x, x, other, s, (*vmm.Graph)(nil), (*vmm.GraphExec)(nil)} {
		require.NoError(t, c.Close())
	}
	require.ErrorIs(t, x.Launch(s), vmm.ErrClosed)
	w.end()
}

// TestGraphOfOtherMemory: work on memory in no reservation, of cuMemAlloc or of the driver's
// pool, is captured and replayed like any; the driver judges it.
func TestGraphOfOtherMemory(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s := stream(t, d)
	plain := raw(t, d).(driver.Allocator)
	p, err := plain.AllocPlain(page)
	require.NoError(t, err)
	block, err := plain.AllocAsync(page, s.Raw())
	free := func() error { return plain.FreeAsync(block, s.Raw()) }
	if errors.Is(err, vmm.ErrNotSupported) { // by a driver without pools
		block, err = plain.AllocPlain(page)
		free = func() error { return plain.FreePlain(block) }
	}
	require.NoError(t, err)
	require.NoError(t, s.BeginCapture())
	require.NoError(t, s.Fill(block, 7, 4, page/4))
	require.NoError(t, s.Copy(p, block, page))
	graph, err := s.EndCapture()
	require.NoError(t, err)
	x := executable(t, graph)
	for range 2 {
		require.NoError(t, s.Fill(p, 0, 4, page/4))
		require.NoError(t, x.Launch(s))
		require.NoError(t, s.Sync())
		var got [page]byte
		require.NoError(t, d.CopyOut(got[:], p))
		require.EqualValues(t, 7, got[page-4])
	}
	for _, c := range []interface{ Close() error }{x, graph} {
		require.NoError(t, c.Close())
	}
	require.NoError(t, free())
	require.NoError(t, s.Sync())
	require.NoError(t, plain.FreePlain(p))
	require.NoError(t, s.Close())
	w.end()
}

// TestGraphMemoryGone: a graph whose memory was clipped, sleeps, was closed, or belongs to
// other streams is refused before anything is queued, and works again if the memory is
// back. Without the check the device would be lost.
func TestGraphMemoryGone(t *testing.T) {
	for _, c := range []struct {
		name       string
		take, back func(g *vmm.Range, s *vmm.Stream) error
		want       error
	}{
		{
			"clipped",
			func(g *vmm.Range, _ *vmm.Stream) error {
				if err := g.SetLen(0); err != nil {
					return err
				}
				return g.Clip()
			},
			func(g *vmm.Range, _ *vmm.Stream) error { return g.Append(make([]byte, page)) }, vmm.ErrBounds,
		},
		{
			"asleep",
			func(g *vmm.Range, _ *vmm.Stream) error { return vmm.Sleep(vmm.SleepKeep, g) },
			func(g *vmm.Range, _ *vmm.Stream) error { return vmm.Wake(g) }, vmm.ErrAsleep,
		},
		{"closed", func(g *vmm.Range, _ *vmm.Stream) error { return g.Close() }, nil, vmm.ErrClosed},
		{
			"another stream's",
			func(g *vmm.Range, s *vmm.Stream) error { return g.UsedBy(s) }, nil, vmm.ErrInvalid,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1)
			d := w.devs[0]
			g, s, other := zeroed(t, d), stream(t, d), stream(t, d)
			m, f := adder(t, d)
			graph := capturedAdd(t, s, f, g)
			x := executable(t, graph)
			require.NoError(t, x.Launch(s))
			require.NoError(t, c.take(g, other))
			require.ErrorIs(t, x.Launch(s), c.want)
			require.NoError(t, d.Sync(), "nothing was queued")
			if c.back != nil {
				require.NoError(t, c.back(g, other))
				require.NoError(t, x.Launch(s))
				require.NoError(t, s.Sync())
				require.Equal(t, uint32(3), wordAt(t, g))
			}
			for _, c := range []interface{ Close() error }{x, graph, g, s, other, m} {
				require.NoError(t, c.Close())
			}
			w.end()
		})
	}
}

// TestGraphOfStreams: a stream that waits for an event of the capture belongs to it, and
// what it uses is remembered, too.
func TestGraphOfStreams(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, s, joined := zeroed(t, d), stream(t, d), stream(t, d)
	m, f := adder(t, d)
	require.NoError(t, s.BeginCapture())
	fork, err := s.Record()
	require.NoError(t, err)
	require.NoError(t, joined.Wait(fork))
	require.NoError(t, f.Launch(joined, addLaunch(g.Ptr(), 5), uses(argOf(g))))
	join, err := joined.Record()
	require.NoError(t, err)
	require.NoError(t, s.Wait(join))
	graph, err := s.EndCapture()
	require.NoError(t, err)
	x := executable(t, graph)
	require.NoError(t, x.Launch(s))
	require.NoError(t, s.Sync())
	require.Equal(t, uint32(5), wordAt(t, g))
	require.NoError(t, g.Close())
	require.ErrorIs(t, x.Launch(s), vmm.ErrClosed)
	for _, c := range []interface{ Close() error }{x, graph, fork, join, joined, s, m} {
		require.NoError(t, c.Close())
	}
	w.end()
}

func TestCaptureRefuses(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s := stream(t, d)
	_, err := s.EndCapture()
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, s.BeginCapture())
	require.ErrorIs(t, s.BeginCapture(), vmm.ErrInvalid)
	require.ErrorIs(t, s.CopyIn(0x1000, make([]byte, 8)), vmm.ErrCapturing)
	require.ErrorIs(t, s.Close(), vmm.ErrCapturing)
	empty, err := s.EndCapture()
	require.NoError(t, err)
	x := executable(t, empty)
	require.NoError(t, s.BeginCapture())
	require.ErrorIs(t, x.Launch(s), vmm.ErrCapturing)
	again, err := s.EndCapture()
	require.NoError(t, err, "the capture went on")
	require.NoError(t, again.Close())
	require.NoError(t, x.Launch(s))
	_, err = (*vmm.Stream)(nil).EndCapture()
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.ErrorIs(t, (*vmm.Stream)(nil).BeginCapture(), vmm.ErrInvalid)
	require.ErrorIs(t, (*vmm.GraphExec)(nil).Launch(s), vmm.ErrInvalid)
	_, err = (*vmm.Graph)(nil).Instantiate()
	require.ErrorIs(t, err, vmm.ErrInvalid)
	for _, c := range []interface{ Close() error }{x, empty, s} {
		require.NoError(t, c.Close())
	}
	w.end()
}

// TestGraphFaults fails each driver call from the capture to the end of the graph.
func TestGraphFaults(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, s := zeroed(t, d), stream(t, d)
	m, f := adder(t, d)
	ends := func(x interface{ Close() error }) {
		t.Helper()
		require.NoError(t, x.Close())
	}
	var ran uint32
	for n := 1; ; n++ {
		w.arm(n)
		var graph *vmm.Graph
		var x *vmm.GraphExec
		err := s.BeginCapture()
		began := err == nil
		if err == nil {
			err = f.Launch(s, addLaunch(g.Ptr(), 1), uses(argOf(g)))
		}
		if err == nil {
			graph, err = s.EndCapture()
			began = err != nil
		}
		if err == nil {
			x, err = graph.Instantiate()
		}
		if err == nil {
			err = x.Update(graph)
		}
		if err == nil {
			err = x.Launch(s)
		}
		if err == nil {
			ran++
			err = x.Close()
		}
		if err == nil {
			err = graph.Close()
		}
		calls := w.disarm()
		if began { // and failed then: it can still be ended
			graph, endErr := s.EndCapture()
			require.NoError(t, endErr, "call %d, %s", n, calls[n-1])
			ends(graph)
		}
		ends(x)
		ends(graph)
		require.NoError(t, s.Sync())
		if len(calls) < n {
			require.NoError(t, err)
			break
		}
		require.ErrorIs(t, err, errInjected, "call %d, %s", n, calls[n-1])
	}
	require.Equal(t, ran, wordAt(t, g))
	ends(g)
	ends(s)
	ends(m)
	w.end()
}

// TestBeginCaptureUndone: a capture that has begun and cannot be named is ended; if that
// fails, too, EndCapture still ends it.
func TestBeginCaptureUndone(t *testing.T) {
	w := newWorld(t, 1)
	s := stream(t, w.devs[0])
	w.refuse("CaptureID", 1, errInjected)
	require.ErrorIs(t, s.BeginCapture(), errInjected)
	require.NoError(t, s.Sync(), "nothing is captured")
	w.refuse("CaptureID", 1, errInjected)
	w.refuse("EndCapture", 1, errInjected)
	err := s.BeginCapture()
	require.ErrorIs(t, err, errInjected)
	require.ErrorContains(t, err, "and ending the capture")
	require.ErrorIs(t, s.Sync(), vmm.ErrCapturing)
	graph, err := s.EndCapture()
	require.NoError(t, err)
	require.NoError(t, graph.Close())

	// Or the next BeginCapture ends it, or Close.
	fail := func(s *vmm.Stream) {
		w.refuse("CaptureID", 1, errInjected)
		w.refuse("EndCapture", 1, errInjected)
		require.ErrorContains(t, s.BeginCapture(), "and ending the capture")
	}
	fail(s)
	require.NoError(t, s.BeginCapture())
	graph, err = s.EndCapture()
	require.NoError(t, err)
	require.NoError(t, graph.Close())
	fail(s)
	require.NoError(t, s.Close())
	w.end()
}

// TestWaitOfAHeldStream: a held stream joins no capture.
func TestWaitOfAHeldStream(t *testing.T) {
	w := newWorld(t, 1)
	origin, s := stream(t, w.devs[0]), stream(t, w.devs[0])
	before, err := origin.Record()
	require.NoError(t, err)
	require.NoError(t, origin.BeginCapture())
	fork, err := origin.Record()
	require.NoError(t, err)
	_, capturing, release, err := s.Hold()
	require.NoError(t, err)
	require.False(t, capturing)
	require.ErrorIs(t, s.Wait(fork), vmm.ErrBusy)
	require.NoError(t, s.Wait(before), "is of no capture")
	require.NoError(t, s.Sync(), "it has joined none")
	release()
	require.NoError(t, s.Wait(fork))
	require.ErrorIs(t, s.Sync(), vmm.ErrCapturing)
	join, err := s.Record()
	require.NoError(t, err)
	require.NoError(t, origin.Wait(join))
	graph, err := origin.EndCapture()
	require.NoError(t, err)
	for _, c := range []io.Closer{graph, before, fork, join, origin, s} {
		require.NoError(t, c.Close())
	}
	w.end()
}

// TestGraphAccess: a graph is refused if the device has lost access that the work needs.
func TestGraphAccess(t *testing.T) {
	w := newWorld(t, 2)
	d, peer := w.devs[0], w.devs[1]
	g, s := zeroed(t, d), stream(t, peer)
	require.NoError(t, g.Grant(vmm.AccessReadWrite, peer))
	m, f := adder(t, peer)
	require.NoError(t, s.BeginCapture())
	require.NoError(t, f.Launch(s, addLaunch(g.Ptr(), 2), uses(argOf(g))))
	graph, err := s.EndCapture()
	require.NoError(t, err)
	x := executable(t, graph)
	require.NoError(t, x.Launch(s))
	require.NoError(t, s.Sync())
	for _, take := range []func() error{
		func() error { return g.Grant(vmm.AccessRead, peer) },
		func() error { return g.Revoke(peer) },
	} {
		require.NoError(t, take())
		require.ErrorIs(t, x.Launch(s), vmm.ErrPermission)
	}
	require.NoError(t, g.Grant(vmm.AccessReadWrite, peer))
	require.NoError(t, x.Launch(s))
	require.NoError(t, peer.Sync())
	require.Equal(t, uint32(4), wordAt(t, g))

	// Work of another device cannot be part of it, nor can it run there: what waits for a
	// device would not cover it.
	other := stream(t, d)
	require.ErrorIs(t, x.Launch(other), vmm.ErrInvalid)
	require.NoError(t, s.BeginCapture())
	fork, err := s.Record()
	require.NoError(t, err)
	require.NoError(t, other.Wait(fork))
	require.ErrorIs(t, other.Fill(g.Ptr(), 1, 4, 1), vmm.ErrInvalid)
	again, err := s.EndCapture()
	require.NoError(t, err)

	// A graph whose code is gone is not made executable.
	require.NoError(t, m.Close())
	_, err = graph.Instantiate()
	require.ErrorIs(t, err, vmm.ErrClosed)
	require.ErrorIs(t, x.Update(graph), vmm.ErrClosed)
	for _, c := range []interface{ Close() error }{fork, again, x, graph, g, s, other} {
		require.NoError(t, c.Close())
	}
	w.end()
}

// TestCaptureBesideLaunches: what is queued while a capture begins or ends either runs or is
// in the graph, with its memory.
func TestCaptureBesideLaunches(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s := stream(t, d)
	m, f := adder(t, d)
	for range 200 {
		g := zeroed(t, d)
		launched := begun(func() error { return f.Launch(s, addLaunch(g.Ptr(), 1), uses(argOf(g))) })
		require.NoError(t, s.BeginCapture())
		require.NoError(t, <-launched)
		ended := begun(func() error { _, err := s.EndCapture(); return err })
		graph, err := s.EndCapture()
		if other := <-ended; err != nil {
			require.ErrorIs(t, err, vmm.ErrInvalid)
			require.NoError(t, other, "one of the two has ended it")
			require.NoError(t, s.Sync())
			require.NoError(t, g.Close())
			continue
		}
		x := executable(t, graph)
		require.NoError(t, s.Sync())
		inGraph := wordAt(t, g) == 0
		require.NoError(t, g.Close())
		err = x.Launch(s)
		if inGraph {
			require.ErrorIs(t, err, vmm.ErrClosed)
		} else {
			require.NoError(t, err)
		}
		require.NoError(t, x.Close())
		require.NoError(t, graph.Close())
	}
	require.NoError(t, m.Close())
}

// TestModuleCloseThatFails: launches go on as if it had not been called.
func TestModuleCloseThatFails(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, s, captured := zeroed(t, d), stream(t, d), stream(t, d)
	m, f := adder(t, d)
	require.NoError(t, captured.BeginCapture())
	launched := begun(func() error {
		for range 1000 {
			if err := f.Launch(s, addLaunch(g.Ptr(), 1), uses(argOf(g))); err != nil {
				return err
			}
		}
		return nil
	})
	for range 100 {
		require.ErrorIs(t, m.Close(), vmm.ErrCapturing)
	}
	require.NoError(t, <-launched)
	graph, err := captured.EndCapture()
	require.NoError(t, err)
	for _, c := range []interface{ Close() error }{graph, m, g, s, captured} {
		require.NoError(t, c.Close())
	}
	w.end()
}

// TestLaunchInDoubt: after a revocation that failed, and whose undo failed, too, it is not
// known what the driver lets the device do: no kernel is queued before the next Grant or
// Revoke.
func TestLaunchInDoubt(t *testing.T) {
	w := newWorld(t, 2)
	d, peer := w.devs[0], w.devs[1]
	r := holed(t, w) // memory in two runs, each of which has its own call
	require.NoError(t, r.Grant(vmm.AccessReadWrite, peer))
	s := stream(t, peer)
	m, f := adder(t, peer)
	arg := vmm.LaunchMemory{}
	r.MemoryArg(&arg.MemoryArg, 0, page)
	memory := []vmm.LaunchMemory{arg}
	require.NoError(t, f.Launch(s, addLaunch(r.Ptr(), 1), memory))
	require.NoError(t, s.Sync())
	seen := 0
	w.before = func(c drivertest.Call) error {
		if c.Name == "SetAccess" {
			if seen++; seen > 1 {
				return errInjected
			}
		}
		return nil
	}
	require.ErrorIs(t, r.Revoke(peer), errInjected)
	w.before = nil
	require.ErrorIs(t, f.Launch(s, addLaunch(r.Ptr(), 1), memory), vmm.ErrBusy)
	require.NoError(t, r.Grant(vmm.AccessReadWrite, peer))
	require.NoError(t, f.Launch(s, addLaunch(r.Ptr(), 1), memory))
	for _, c := range []interface{ Close() error }{s, m, r} {
		require.NoError(t, c.Close())
	}
	require.NoError(t, d.Sync())
	w.end()
}
