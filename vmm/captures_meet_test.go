package vmm_test

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// What meets a capture here was begun before it, or goes on beside it.

// once is a hook that calls f at the first call of that name.
func once(name string, f func()) func(drivertest.Call) error {
	var done atomic.Bool
	return func(c drivertest.Call) error {
		if c.Name == name && done.CompareAndSwap(false, true) {
			f()
		}
		return nil
	}
}

// TestCopyThatACaptureOvertakes: the capture begins after the copy has been asked for. The copy is
// refused whole, and nothing of it stays in the graph, or busy.
func TestCopyThatACaptureOvertakes(t *testing.T) {
	copies := map[string]func(g *vmm.Range, s *vmm.Stream) error{
		"AppendOn": func(g *vmm.Range, s *vmm.Stream) error { return g.AppendOn(s, make([]byte, page)) },
		"CopyIn":   func(g *vmm.Range, s *vmm.Stream) error { return s.CopyIn(g.Ptr(), make([]byte, page)) },
		"CopyOut":  func(g *vmm.Range, s *vmm.Stream) error { return s.CopyOut(make([]byte, page), g.Ptr()) },
	}
	for name, copies := range copies {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			s := stream(t, w.devs[0])
			g := ranged(t, w, page)
			// The first copy through the library's pinned memory makes it.
			w.before = once("AllocHost", func() { require.NoError(t, s.BeginCapture()) })
			require.ErrorIs(t, copies(g, s), vmm.ErrCapturing)
			w.before = nil
			require.EqualValues(t, page, g.Len())
			graph, err := s.EndCapture()
			require.NoError(t, err)
			x, err := graph.Instantiate()
			require.NoError(t, err)
			require.NoError(t, g.Close(), "the graph does not use it")
			require.NoError(t, x.Launch(s))
			require.NoError(t, errors.Join(s.Sync(), x.Close(), graph.Close(), s.Close()))
			w.end()
		})
	}
}

// TestCopyThatAForeignCaptureTakes: another library begins a capture of its stream between the
// question and the copy. The copy is refused, the capture lives, and the block is free.
func TestCopyThatAForeignCaptureTakes(t *testing.T) {
	for _, ends := range []bool{false, true} { // whether the capture ends before the copy does
		w := newWorld(t, 1)
		d := w.devs[0]
		own := stream(t, d)
		theirs, err := w.inner.Open(0)
		require.NoError(t, err)
		graphs := theirs.(driver.Grapher)
		s := d.WrapStream(uintptr(own.Raw()))
		g := ranged(t, w, page)
		var graph driver.Graph
		w.before = once("Copy", func() {
			require.NoError(t, graphs.BeginCapture(own.Raw(), driver.CaptureRelaxed))
		})
		end := func() {
			graph, err = graphs.EndCapture(own.Raw())
			require.NoError(t, err)
		}
		if ends {
			begin, after := w.before, once("Capturing", end)
			recorded := false
			w.before = func(c drivertest.Call) error {
				if recorded {
					return after(c)
				}
				recorded = c.Name == "Record"
				return begin(c)
			}
		}
		require.ErrorIs(t, s.CopyIn(g.Ptr(), make([]byte, page)), vmm.ErrCapturing)
		w.before = nil
		if !ends {
			end()
		}
		require.NoError(t, graphs.FreeGraph(graph))
		require.NoError(t, theirs.Close())
		require.NoError(t, s.CopyIn(g.Ptr(), make([]byte, page)))
		require.NoError(t, errors.Join(s.Sync(), g.Close(), s.Close(), own.Close()))
		w.end()
	}
}

// TestCaptureBesideOneCall: none of these calls destroys a capture that another goroutine begins
// and ends meanwhile, and none fails but with ErrCapturing.
func TestCaptureBesideOneCall(t *testing.T) {
	rounds := testgate.Effort(100, 1000, 100_000)
	type pair struct {
		d *vmm.Device
		s *vmm.Stream
		g *vmm.Range
		r *vmm.Reservation
	}
	beside := map[string]func(p pair) error{
		"Device.Sync": func(p pair) error { return p.d.Sync() },
		"Stream.Sync": func(p pair) error { return p.s.Sync() },
		"Stream.Done": func(p pair) error { _, err := p.s.Done(); return err },
		"ReadAt":      func(p pair) error { _, err := p.g.ReadAt(make([]byte, 1), 0); return err },
		"WaitWritten": func(p pair) error { _, err := p.g.WaitWritten(t.Context()); return err },
		"Clip":        func(p pair) error { return errors.Join(p.g.Grow(page), p.g.Clip()) },
		"Fence": func(p pair) error {
			f, err := p.s.Fence()
			if err == nil {
				_, err = f.Done()
				f.Free()
			}
			return err
		},
		"Record": func(p pair) error {
			e, err := p.s.Record()
			return errors.Join(err, e.Close())
		},
		"Module.Close": func(p pair) error {
			m, _, err := p.d.LoadModule(addCode())
			if err != nil {
				return err
			}
			for err = m.Close(); errors.Is(err, vmm.ErrCapturing); err = m.Close() {
			}
			return err
		},
		"Sleep": func(p pair) error {
			err := vmm.Sleep(vmm.SleepKeep, p.g)
			return errors.Join(err, vmm.Wake(p.g))
		},
		"Clip after UsedBy": func(p pair) error {
			g, err := p.d.NewRange(vmm.RangeOptions{Max: page})
			if err != nil {
				return err
			}
			err = errors.Join(g.UsedBy(p.s), g.Grow(page), g.Clip())
			for again := g.Close(); again != nil; again = g.Close() {
				if !errors.Is(again, vmm.ErrCapturing) {
					return errors.Join(err, again)
				}
			}
			return err
		},
	}
	for name, call := range beside {
		for _, named := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, 1)
				p := pair{d: w.devs[0], s: stream(t, w.devs[0]), g: ranged(t, w, page)}
				var err error
				p.r, err = p.d.Reserve(page, vmm.ReserveOptions{})
				require.NoError(t, err)
				w.register(p.r)
				if named {
					require.NoError(t, p.g.UsedBy(p.s))
				}
				stop := make(chan struct{})
				var calls atomic.Int64
				var caller sync.WaitGroup
				caller.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if err := call(p); err != nil && !errors.Is(err, vmm.ErrCapturing) {
							t.Error(err)
							return
						}
						calls.Add(1)
					}
				})
				for i := 0; i < rounds || calls.Load() < int64(rounds/10); i++ {
					if !assertCapture(t, p.s) || t.Failed() {
						break
					}
				}
				close(stop)
				caller.Wait()
				for err = p.r.Close(); errors.Is(err, vmm.ErrBusy); err = p.r.Close() {
				}
				require.NoError(t, errors.Join(err, p.g.Close(), p.s.Close()))
				w.end()
			})
		}
	}
}

// assertCapture begins a capture and ends it.
func assertCapture(t *testing.T, s *vmm.Stream) bool {
	t.Helper()
	if err := s.BeginCapture(); err != nil {
		t.Errorf("begin: %v", err)
		return false
	}
	graph, err := s.EndCapture()
	if err == nil {
		err = graph.Close()
	}
	if err != nil {
		t.Errorf("end: %v", err)
	}
	return err == nil
}

// TestLostCapturesAreForgotten: captures that a foreign reset has taken are none once their
// streams have closed.
func TestLostCapturesAreForgotten(t *testing.T) {
	var asked atomic.Int64
	drv := host.New(host.Config{Devices: 2, Memory: 64 << 20, Granularity: page})
	counted := drivertest.Inject(drv, func(c drivertest.Call) error {
		if c.Name == "Capturing" || c.Name == "CaptureID" {
			asked.Add(1)
		}
		return nil
	})
	other, err := vmm.OpenDriver(counted, 1)
	require.NoError(t, err)
	s := stream(t, other)
	for range 3 {
		d, err := vmm.OpenDriver(counted, 0)
		require.NoError(t, err)
		lost, err := d.NewStream()
		require.NoError(t, err)
		require.NoError(t, lost.BeginCapture())
		require.NoError(t, drv.ResetContext(0))
		_ = lost.Close() // says that its work was lost
		_ = d.Close()
	}
	d, err := vmm.OpenDriver(counted, 0)
	require.NoError(t, err)
	again := stream(t, d)
	asked.Store(0)
	require.NoError(t, s.Usable())
	require.NoError(t, again.Usable())
	require.Zero(t, asked.Load(), "nothing is being captured")
	require.NoError(t, errors.Join(s.Close(), again.Close(), d.Close(), other.Close()))
}

// TestReadsChooseTheirLengthFirst: what a read returns has arrived, though Len moves while it
// waits.
func TestReadsChooseTheirLengthFirst(t *testing.T) {
	reads := map[string]func(g *vmm.Range) ([]byte, error){
		"ReadAt": func(g *vmm.Range) ([]byte, error) {
			p := make([]byte, 2*page)
			n, err := g.ReadAt(p, 0)
			return p[:n], err
		},
		"ReadRowsAt": func(g *vmm.Range) ([]byte, error) {
			p := make([]byte, 2*page)
			n, err := g.ReadRowsAt(p, 0, page, page)
			return p[:n], err
		},
		"WriteTo": func(g *vmm.Range) ([]byte, error) {
			var b bytes.Buffer
			_, err := g.WriteTo(&b)
			return b.Bytes(), err
		},
	}
	moves := map[string]func(g *vmm.Range, s *vmm.Stream) error{
		"AppendOn": func(g *vmm.Range, s *vmm.Stream) error { return g.AppendOn(s, bytes.Repeat([]byte{2}, page)) },
		"SetLen": func(g *vmm.Range, s *vmm.Stream) error {
			return errors.Join(s.Fill(g.Ptr()+page, 2, 1, page), g.SetLen(2*page))
		},
	}
	for name, read := range reads {
		for what, move := range moves {
			for _, named := range []bool{false, true} {
				t.Run(name+" "+what, func(t *testing.T) {
					w := newWorld(t, 1)
					s := stream(t, w.devs[0])
					g := ranged(t, w, 0)
					require.NoError(t, g.Append(bytes.Repeat([]byte{1}, page)))
					require.NoError(t, g.Grow(page))
					if named {
						require.NoError(t, g.UsedBy(s))
					}
					first := gate(t, s.Device(), s.Raw())
					waits := make(chan struct{})
					w.before = once("SyncEvent", func() { close(waits) })
					var got []byte
					done := begun(func() (err error) {
						got, err = read(g)
						if errors.Is(err, io.EOF) {
							err = nil
						}
						return err
					})
					<-waits
					second := gate(t, s.Device(), s.Raw())
					require.NoError(t, move(g, s))
					opened := begun(func() error { first(); return nil }) // it waits for both
					require.NoError(t, <-done)
					require.Equal(t, bytes.Repeat([]byte{1}, page), got)
					second()
					require.NoError(t, <-opened)
					require.NoError(t, errors.Join(g.Close(), s.Close()))
					w.end()
				})
			}
		}
	}
}

// TestKernelThatWaitsForACapture: work that waits for what its own goroutine is about to capture
// and launch holds up neither that goroutine nor, in the end, a Clip that waits for it.
func TestKernelThatWaitsForACapture(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	waiting, s := stream(t, d), stream(t, d)
	g, released := ranged(t, w, 2*page), ranged(t, w, page)
	open := gate(t, waiting.Device(), waiting.Raw())
	require.NoError(t, g.SetLen(0))
	waits := make(chan struct{})
	w.before = once("SyncEvent", func() { close(waits) })
	clipped := begun(g.Clip)
	<-waits
	require.NoError(t, s.BeginCapture())
	require.NoError(t, s.Fill(released.Ptr(), 1, 1, page))
	graph, err := s.EndCapture()
	require.NoError(t, err)
	x, err := graph.Instantiate()
	require.NoError(t, err)
	require.NoError(t, x.Launch(s))
	require.NoError(t, s.Sync())
	open() // as the kernel that sees what the graph has written
	require.NoError(t, <-clipped)
	require.Zero(t, g.Stats().Committed)
	require.NoError(t, errors.Join(x.Close(), graph.Close(), g.Close(), released.Close(), waiting.Close(), s.Close()))
	w.end()
}

// TestCapturesBesideAHeldStream: behind a stream with much work that does not begin, captures of
// others begin and end, and their ranges are clipped.
func TestCapturesBesideAHeldStream(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	held, s := stream(t, d), stream(t, d)
	g, busy := ranged(t, w, 2*page), ranged(t, w, page)
	require.NoError(t, g.UsedBy(s))
	open := gate(t, held.Device(), held.Raw())
	for range 900 {
		require.NoError(t, held.Fill(busy.Ptr(), 1, 1, 16))
	}
	for range 20 {
		require.True(t, assertCapture(t, s))
		require.NoError(t, g.SetLen(0))
		require.NoError(t, g.Clip())
		require.NoError(t, s.Sync())
		require.Eventually(t, func() bool { return g.Stats().Retiring == 0 }, 10*time.Second, time.Millisecond)
		require.NoError(t, g.Append(make([]byte, 2*page)))
	}
	open()
	require.NoError(t, errors.Join(g.Close(), busy.Close(), s.Close(), held.Close()))
	w.end()
}

// TestCapturesThatOverlapHoldNoMemory: some capture is always open, and never the same one. What
// a named stream's range has given up is unmapped when that stream's own capture ends.
func TestCapturesThatOverlapHoldNoMemory(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	var all []*vmm.Stream
	for range 8 {
		all = append(all, stream(t, d))
	}
	g := ranged(t, w, page)
	require.NoError(t, g.UsedBy(all[0]))
	for _, s := range all {
		require.NoError(t, s.BeginCapture())
	}
	for i := range 40 {
		s := all[i%len(all)]
		if s == all[0] {
			require.NoError(t, g.SetLen(0))
			require.NoError(t, g.Clip())
			require.NotZero(t, g.Stats().Retiring)
		}
		finishCapture(t, s)
		if s == all[0] {
			require.Eventually(t, func() bool { return g.Stats().Retiring == 0 }, 10*time.Second, time.Millisecond)
			require.NoError(t, g.Append(make([]byte, page)))
		}
		require.NoError(t, s.BeginCapture())
	}
	for _, s := range all {
		finishCapture(t, s)
		require.NoError(t, s.Close())
	}
	require.NoError(t, g.Close())
	w.end()
}

// TestCaptureForksAndEndsElsewhere: streams join and are waited for; another goroutine than the
// one that began a capture ends it.
func TestCaptureForksAndEndsElsewhere(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	origin, branch := stream(t, d), stream(t, d)
	g := ranged(t, w, page)
	require.NoError(t, origin.BeginCapture())
	require.NoError(t, origin.Fill(g.Ptr(), 1, 1, page))
	fork, err := origin.Record()
	require.NoError(t, err)
	require.NoError(t, branch.Wait(fork))
	require.ErrorIs(t, branch.Sync(), vmm.ErrCapturing)
	require.ErrorIs(t, branch.Usable(), vmm.ErrCapturing)
	require.ErrorIs(t, branch.Close(), vmm.ErrCapturing)
	require.ErrorIs(t, d.Sync(), vmm.ErrCapturing)
	require.NoError(t, branch.Fill(g.Ptr(), 2, 1, page))
	join, err := branch.Record()
	require.NoError(t, err)
	require.NoError(t, origin.Wait(join))
	var graph *vmm.Graph
	require.NoError(t, apart(func() (err error) {
		graph, err = origin.EndCapture()
		return err
	}))
	require.NoError(t, branch.Usable())
	x, err := graph.Instantiate()
	require.NoError(t, err)
	require.NoError(t, x.Launch(branch))
	got := make([]byte, 1)
	require.NoError(t, branch.CopyOut(got, g.Ptr()))
	require.EqualValues(t, 2, got[0])
	require.NoError(t, errors.Join(d.Sync(), x.Close(), graph.Close(), fork.Close(), join.Close(), g.Close(), origin.Close(), branch.Close()))
	w.end()
}

// TestStreamOfAnotherDeviceJoinsACapture: it does no work there, and until the end neither
// device is waited for.
func TestStreamOfAnotherDeviceJoinsACapture(t *testing.T) {
	w := newWorld(t, 2)
	origin, branch := stream(t, w.devs[0]), stream(t, w.devs[1])
	require.NoError(t, origin.BeginCapture())
	fork, err := origin.Record()
	require.NoError(t, err)
	require.NoError(t, branch.Wait(fork))
	require.ErrorIs(t, w.devs[0].Sync(), vmm.ErrCapturing)
	require.ErrorIs(t, w.devs[1].Sync(), vmm.ErrCapturing)
	join, err := branch.Record()
	require.NoError(t, err)
	require.NoError(t, origin.Wait(join))
	finishCapture(t, origin)
	require.NoError(t, errors.Join(w.devs[0].Sync(), w.devs[1].Sync(), fork.Close(), join.Close(), origin.Close(), branch.Close()))
	w.end()
}
