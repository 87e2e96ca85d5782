package vmm_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// What waits for a device, for copies or for a Supplier holds up nothing that needs other memory.

// returns fails the test if f does not return.
func returns(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Errorf("it waits:\n%s", stacks())
	}
}

func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// parked calls f in a goroutine and returns when that waits for something. What it returns
// waits for f, and is its error.
func parked(f func() error) (end func() error) {
	done := make(chan error, 1)
	go runParked(f, done)
	for twice := 0; twice < 2; runtime.Gosched() {
		waits := len(done) > 0 || slices.ContainsFunc(strings.Split(stacks(), "\n\n"), func(g string) bool {
			head, _, _ := strings.Cut(g, "\n")
			return strings.Contains(g, "vmm_test.runParked(") && !strings.Contains(head, "[run")
		})
		if twice++; !waits {
			twice = 0
		}
	}
	return func() error { return <-done }
}

func runParked(f func() error, done chan<- error) { done <- f() }

// heldUp is an operation on a range that waits until open is called.
type heldUp struct {
	opts vmm.RangeOptions
	hold func(w *world, g *vmm.Range, s *vmm.Stream) (open func(), op func() error)
}

// behindWork holds op behind work of the stream.
func behindWork(op func(g *vmm.Range) error) func(*world, *vmm.Range, *vmm.Stream) (func(), func() error) {
	return func(w *world, g *vmm.Range, s *vmm.Stream) (func(), func() error) {
		return gate(w.t, g.Device(), s.Raw()), func() error { return op(g) }
	}
}

// behindSpans holds op behind LockSpans, and lets memory of the range retire before.
func behindSpans(op func(g *vmm.Range) error) func(*world, *vmm.Range, *vmm.Stream) (func(), func() error) {
	return func(w *world, g *vmm.Range, s *vmm.Stream) (func(), func() error) {
		open := gate(w.t, g.Device(), s.Raw())
		require.NoError(w.t, g.SetLen(page))
		require.NoError(w.t, g.Clip())
		require.NoError(w.t, g.Grow(page))
		other, err := g.Device().NewStream()
		require.NoError(w.t, err)
		require.NoError(w.t, g.UsedBy(other))
		unlock, err := other.LockSpans(vmm.Span{Addr: g.Ptr(), Size: page, Access: vmm.AccessReadWrite})
		require.NoError(w.t, err)
		open() // what has retired can be unmapped
		return func() { unlock(); require.NoError(w.t, other.Close()) }, func() error { return op(g) }
	}
}

func clipTo(n uint64) func(g *vmm.Range) error {
	return func(g *vmm.Range) error { return errors.Join(g.SetLen(n), g.Clip()) }
}

// sleepAndWake lets the range be used on after it.
func sleepAndWake(g *vmm.Range) error { return errors.Join(vmm.Sleep(vmm.SleepKeep, g), vmm.Wake(g)) }

var heldUps = map[string]heldUp{
	"Sleep behind work":   {hold: behindWork(sleepAndWake)},
	"Sleep behind a copy": {hold: behindSpans(sleepAndWake)},
	"Clip behind a copy":  {hold: behindSpans(clipTo(0))},
	"Clip without UsedBy": {hold: func(w *world, _ *vmm.Range, s *vmm.Stream) (func(), func() error) {
		unused := ranged(w.t, w, 8*page)
		open := gate(w.t, s.Device(), s.Raw())
		return open, func() error { return errors.Join(unused.SetLen(page), unused.Clip(), unused.Close()) }
	}},
	"Trim of access in doubt": {hold: func(w *world, _ *vmm.Range, _ *vmm.Stream) (func(), func() error) {
		// Of Devices of its own: each Trim of a Device mends what it has.
		d, r := doubted(w)
		peer, err := vmm.OpenDriver(w.drv, 1)
		require.NoError(w.t, err)
		require.ErrorIs(w.t, r.Grant(vmm.AccessReadWrite, peer), errInjected)
		w.before = nil
		s, err := peer.NewStream()
		require.NoError(w.t, err)
		return gate(w.t, peer, s.Raw()), func() error {
			_, err := d.Trim(0)
			return errors.Join(err, r.Close(), s.Close(), d.Close(), peer.Close())
		}
	}},
	"Close behind work":   {hold: behindWork((*vmm.Range).Close)},
	"Close behind a copy": {hold: behindSpans((*vmm.Range).Close)},
	"Clip with Zero":      {opts: vmm.RangeOptions{Zero: true}, hold: behindWork(clipTo(page))},
	"ReadAt behind work":  {hold: behindWork(func(g *vmm.Range) error { _, err := g.ReadAt(make([]byte, 1), 0); return err })},
	"Sync behind work":    {hold: behindWork(func(g *vmm.Range) error { return g.Device().Sync() })},
	"Grow with Zero": {
		opts: vmm.RangeOptions{Zero: true},
		hold: func(w *world, g *vmm.Range, s *vmm.Stream) (func(), func() error) {
			require.NoError(w.t, g.SetLen(page))
			open := gate(w.t, g.Device(), s.Raw())
			clip := parked(g.Clip)
			return open, func() error { return errors.Join(g.Grow(6*page), clip()) }
		},
	},
	"Grow ahead with Zero": {
		opts: vmm.RangeOptions{Zero: true, GrowAhead: 64 * page, Chunk: page},
		hold: func(w *world, g *vmm.Range, s *vmm.Stream) (func(), func() error) {
			require.NoError(w.t, g.SetLen(page/2))
			require.NoError(w.t, g.Grow(64*page))
			open := gate(w.t, g.Device(), s.Raw())
			clip := parked(g.Clip)
			end := parked(func() error { return g.Grow(64 * page) })
			return open, func() error {
				return errors.Join(g.Append(make([]byte, page/4)), clip(), end()) // which asks for growth ahead
			}
		},
	},
	"a Supplier": {
		opts: vmm.RangeOptions{Supplier: &slowSupplier{}},
		hold: func(_ *world, g *vmm.Range, _ *vmm.Stream) (func(), func() error) {
			supplyMu.Lock()
			return supplyMu.Unlock, func() error { return g.Grow(16 * page) }
		},
	},
	"EnablePeers": {hold: func(w *world, g *vmm.Range, s *vmm.Stream) (func(), func() error) {
		d, err := vmm.OpenDriver(g.Device().Driver(), 1)
		require.NoError(w.t, err)
		require.NoError(w.t, g.Grant(vmm.AccessReadWrite, d))
		open := gate(w.t, g.Device(), s.Raw())
		return open, func() error {
			return errors.Join(vmm.EnablePeers(vmm.AccessRead, []*vmm.Device{g.Device(), d}, g), g.Grant(vmm.AccessReadWrite, g.Device()), g.Revoke(d), d.Close())
		}
	}},
	"Revoke": {hold: func(w *world, g *vmm.Range, s *vmm.Stream) (func(), func() error) {
		d, err := vmm.OpenDriver(g.Device().Driver(), 1)
		require.NoError(w.t, err)
		require.NoError(w.t, g.Grant(vmm.AccessReadWrite, d))
		open := gate(w.t, g.Device(), s.Raw())
		return open, func() error { return errors.Join(g.Revoke(d), d.Close()) }
	}},
}

// doubted is a reservation in two stretches, of a Device of its own. A Grant fails after the first
// one, and so does its undo, until w.before is nil.
func doubted(w *world) (*vmm.Device, *vmm.Reservation) {
	w.t.Helper()
	d, err := vmm.OpenDriver(w.drv, 0)
	require.NoError(w.t, err)
	r, err := d.Reserve(16*page, vmm.ReserveOptions{})
	require.NoError(w.t, err)
	for _, off := range []uint64{0, 8 * page} {
		c, err := d.Create(page, vmm.Prop{})
		require.NoError(w.t, err)
		require.NoError(w.t, r.Map(off, c))
		require.NoError(w.t, c.Close())
	}
	seen := 0
	w.before = func(c drivertest.Call) error {
		if c.Name == "SetAccess" {
			if seen++; seen > 1 {
				return errInjected
			}
		}
		return nil
	}
	return d, r
}

// heldRange is a range for h, of the first device, in use by s.
func heldRange(w *world, h heldUp, s *vmm.Stream) *vmm.Range {
	w.t.Helper()
	d := w.devs[0]
	h.opts.Max = 256 * page
	if h.opts.Supplier != nil {
		h.opts.Supplier = &slowSupplier{d}
	} else if h.opts.GrowAhead == 0 {
		h.opts.Chunk = page
	}
	g, err := d.NewRange(h.opts)
	require.NoError(w.t, err)
	require.NoError(w.t, g.UsedBy(s))
	require.NoError(w.t, g.Append(make([]byte, 8*page)))
	return g
}

// slowSupplier makes chunks once it can lock supplyMu.
type slowSupplier struct{ d *vmm.Device }

var supplyMu sync.Mutex

func (s *slowSupplier) Chunks(_ context.Context, _, need uint64) ([]*vmm.Chunk, error) {
	supplyMu.Lock()
	defer supplyMu.Unlock()
	c, err := s.d.Create(need, vmm.Prop{})
	return []*vmm.Chunk{c}, err
}

// everything uses all that other memory of the device has to offer. It names each step before.
func everything(d *vmm.Device, s *vmm.Stream, step func(string)) error {
	step("Device.Stats")
	d.Stats()
	d.Report()
	step("Device.Create")
	c, err := d.Create(page, vmm.Prop{})
	if err != nil {
		return err
	}
	err = c.Close()
	for _, opts := range []vmm.RangeOptions{{Max: 64 * page, Chunk: page}, {Max: 64 * page, Chunk: page, Zero: true}, {Max: 64 * page, GrowAhead: 4 * page}} {
		step("NewRange")
		g, failed := d.NewRange(opts)
		if failed != nil {
			return failed
		}
		steps := []struct {
			name string
			do   func() error
		}{
			{"UsedBy", func() error { return g.UsedBy(s) }},
			{"Append", func() error { return g.Append(make([]byte, 5*page)) }},
			{"AppendOn", func() error { return g.AppendOn(s, make([]byte, page)) }},
			{"ReadAt", func() error { _, err := g.ReadAt(make([]byte, page), 0); return err }},
			{"SetLen", func() error { return g.SetLen(page) }},
			{"Clip", g.Clip},
			{"Grow", func() error { return g.Grow(7 * page) }},
			{"Clip", g.Clip},
			{"its unmap", func() error {
				for g.Stats().Retiring > 0 {
					runtime.Gosched()
				}
				return nil
			}},
			{"Sleep", func() error { return vmm.Sleep(vmm.SleepKeep, g) }},
			{"Wake", func() error { return vmm.Wake(g) }},
			{"Close", g.Close},
		}
		for _, x := range steps {
			step(x.name)
			if failed := x.do(); failed != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", x.name, failed))
			}
		}
	}
	step("Trim")
	_, failed := d.Trim(0)
	return errors.Join(err, failed)
}

// TestNothingWaitsForOthers: while one operation on a range waits, all operations on another
// range, of another Device on the same card and of another card return.
func TestNothingWaitsForOthers(t *testing.T) {
	for name, h := range heldUps {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			d := w.devs[0]
			second, err := vmm.OpenDriver(d.Driver(), 0)
			require.NoError(t, err)
			s := stream(t, d)
			g := heldRange(w, h, s)
			open, op := h.hold(w, g, s)
			others := []*vmm.Device{d, second, w.devs[1]}
			streams := []*vmm.Stream{stream(t, d), stream(t, second), stream(t, w.devs[1])}
			end := parked(op)
			done := make(chan error, len(others))
			var at [3]atomic.Value
			for i, o := range others {
				go func() { done <- everything(o, streams[i], func(s string) { at[i].Store(s) }) }()
			}
			for range others {
				select {
				case err := <-done:
					require.NoError(t, err)
				case <-time.After(10 * time.Second):
					t.Errorf("beside %s there wait %v, on another range, Device and card:\n%s", name, at, stacks())
				}
			}
			require.Contains(t, stacks(), "vmm_test.runParked(", "it was held all the time")
			open()
			if t.Failed() {
				return
			}
			require.NoError(t, end())
			require.NoError(t, g.Close())
			for _, s := range append(streams, s) {
				require.NoError(t, s.Close())
			}
			require.NoError(t, second.Close())
			w.end()
		})
	}
}

// TestCloseBesideASweep: a Close does not wait for the unmapping of another range's memory.
func TestCloseBesideASweep(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s := stream(t, d)
	g, other := ranged(t, w, 8*page), ranged(t, w, page)
	require.NoError(t, g.UsedBy(s))
	require.NoError(t, g.SetLen(0))
	in, out := make(chan struct{}), make(chan struct{})
	w.before = once("Unmap", func() { close(in); <-out })
	require.NoError(t, g.Clip())
	<-in
	returns(t, func() { require.NoError(t, other.Close()) })
	close(out)
	require.NoError(t, g.Close())
	require.NoError(t, s.Close())
	w.end()
}

// TestLockedSpansBesideAnotherClose: a goroutine that has locked spans closes another range, while
// the range of the spans falls asleep and has memory that is to be unmapped.
func TestLockedSpansBesideAnotherClose(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s, locker := stream(t, d), stream(t, d)
	g, other := ranged(t, w, 8*page), ranged(t, w, page)
	require.NoError(t, g.UsedBy(s, locker))
	open := gate(t, d, s.Raw())
	require.NoError(t, g.SetLen(page))
	require.NoError(t, g.Clip())
	unlock, err := locker.LockSpans(vmm.Span{Addr: g.Ptr(), Size: page, Access: vmm.AccessReadWrite})
	require.NoError(t, err)
	slept := parked(func() error { return vmm.Sleep(vmm.SleepKeep, g) })
	open()
	for g.Stats().Retiring > 0 && d.Stats().Retiring > page { // the goroutine has come by
		runtime.Gosched()
	}
	returns(t, func() { require.NoError(t, other.Close()) })
	unlock()
	require.NoError(t, slept())
	require.NoError(t, errors.Join(g.Close(), s.Close(), locker.Close()))
	w.end()
}

// TestZeroAppendBesideOwnSpans: an append to a range with Zero has what retires unmapped without
// waiting for spans that its own goroutine has locked.
func TestZeroAppendBesideOwnSpans(t *testing.T) {
	w := newWorld(t, 1)
	g, s, open := retiringAhead(t, w)
	unlock, err := s.LockSpans(vmm.Span{Addr: g.Ptr(), Size: page, Access: vmm.AccessReadWrite})
	require.NoError(t, err)
	open()
	returns(t, func() { require.NoError(t, g.Append(make([]byte, 4*page))) })
	unlock()
	require.NoError(t, errors.Join(g.Close(), s.Close()))
	w.end()
}

// TestWaitsWithALock: the check of what is held across a wait finds a deliberate violation.
func TestWaitsWithALock(t *testing.T) {
	if !lock.Ordered {
		t.Skip("needs the race detector: make race")
	}
	w := newWorld(t, 1)
	g := ranged(t, w, page)
	require.PanicsWithValue(t, fmt.Sprintf("lock: a wait while level %d, key %d is held", lock.Growth, vmm.LockKey(g)), func() { _ = vmm.WaitWithLock(g) })
	require.NoError(t, g.Close())
	w.end()
}

// TestCloseContextJoinsTheCloseUnderWay: those that give up leave one goroutine, not one each.
func TestCloseContextJoinsTheCloseUnderWay(t *testing.T) {
	w := newWorld(t, 1)
	l := newLender(t, w.devs[0])
	l.share = false
	asked, let := make(chan struct{}), make(chan struct{})
	l.set(func(context.Context) error {
		close(asked)
		<-let
		return errInjected
	}, nil)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Supplier: l})
	grown := make(chan error, 1)
	go func() { grown <- g.Grow(page) }()
	<-asked
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	before := runtime.NumGoroutine()
	for range 1000 {
		require.ErrorIs(t, g.CloseContext(ctx), context.Canceled)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before+1)
	close(let)
	require.Error(t, <-grown)
	require.NoError(t, g.Close())
	w.end()
}

// TestLockSpansHoldUpWhatTouchesThem alone: not a Clip, a SetLen and an Append beyond them, also of
// a range that promises zeros, and not their own goroutine; but what is theirs, until unlock.
func TestLockSpansHoldUpWhatTouchesThem(t *testing.T) {
	for _, zero := range []bool{false, true} {
		t.Run(fmt.Sprintf("zero=%v", zero), func(t *testing.T) {
			w := newWorld(t, 1)
			d := w.devs[0]
			s := stream(t, d)
			g := newRange(t, d, vmm.RangeOptions{Max: 64 * page, Chunk: page, Zero: zero})
			require.NoError(t, g.Append(pattern(8*page, 7)))
			require.NoError(t, g.SetLen(4*page))
			lock := func(off uint64) func() {
				unlock, err := s.LockSpans(vmm.Span{Addr: g.Ptr() + vmm.Ptr(off), Size: page, Access: vmm.AccessRead})
				require.NoError(t, err)
				return unlock
			}
			unlock := lock(0)
			returns(t, func() {
				clipped := begun(func() error { return errors.Join(g.SetLen(3*page), g.Clip()) })
				require.NoError(t, g.Append(pattern(page, 8)))
				require.NoError(t, <-clipped)
				require.NoError(t, errors.Join(g.SetLen(2*page), g.Grow(8*page), g.Append(pattern(page, 9))))
			})
			unlock()

			unlock = lock(page) // a part of what goes
			clip := func() error { return errors.Join(g.SetLen(0), g.Clip()) }
			end := parked(clip)
			require.NotZero(t, g.Stats().Committed)
			unlock()
			require.NoError(t, end())
			require.Zero(t, g.Stats().Committed)
			require.NoError(t, errors.Join(s.Close(), g.Close()))
			w.end()
		})
	}
}
