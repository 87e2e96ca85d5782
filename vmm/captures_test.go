package vmm_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// number is an environment variable that is a number, or what it is otherwise.
func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// capturer is one goroutine of TestCapturesBesideEverything.
type capturer struct {
	d        *vmm.Device
	r        *rand.Rand
	g        *vmm.Range // its streams work on it
	s, other *vmm.Stream
	p        *pool.Pool    // of all goroutines
	add      *vmm.Function // adds to the words of a page
	counts   *captureCounts
}

// captureCounts is what all goroutines did.
type captureCounts struct{ captured, clipped, slept, blocks, refused, failed atomic.Int64 }

// expected passes over errors that a call may return beside captures, or that were injected.
func (c *capturer) expected(err error) error {
	switch {
	case errors.Is(err, errInjected):
		c.counts.failed.Add(1)
	case errors.Is(err, vmm.ErrCapturing), errors.Is(err, vmm.ErrBusy):
		c.counts.refused.Add(1)
	default:
		return err
	}
	return nil
}

// newRange replaces the goroutine's range.
func (c *capturer) newRange() error {
	g, err := c.d.NewRange(vmm.RangeOptions{Max: 64 * page, Zero: c.r.IntN(2) == 0})
	if err != nil {
		return err
	}
	if c.r.IntN(2) == 0 {
		err = g.UsedBy(c.s, c.other)
	}
	c.g = g
	return err
}

// capture captures fills of the range, on two streams, launches them and looks at the bytes.
func (c *capturer) capture() error {
	if err := c.g.Grow(2 * page); err != nil {
		return err
	}
	value := byte(c.r.Uint32())
	if err := c.s.BeginCapture(); err != nil {
		return err
	}
	err := func() error {
		if err := c.s.Fill(c.g.Ptr(), uint32(value), 1, page); err != nil {
			return err
		}
		fork, err := c.s.Record()
		if err != nil {
			return err
		}
		defer fork.Close() //nolint:errcheck // the device says so when it closes
		if err := c.other.Wait(fork); err != nil {
			return err
		}
		filled := c.other.Fill(c.g.Ptr()+vmm.Ptr(page), uint32(value), 1, page)
		join, err := c.other.Record()
		for err != nil { // injected: else the capture would have a stream too many
			join, err = c.other.Record()
		}
		defer join.Close() //nolint:errcheck // as above
		for err = c.s.Wait(join); err != nil; err = c.s.Wait(join) {
			if !errors.Is(err, errInjected) {
				return err
			}
		}
		return filled
	}()
	graph, end := c.s.EndCapture()
	for errors.Is(end, errInjected) {
		graph, end = c.s.EndCapture()
	}
	if end != nil {
		return fmt.Errorf("a capture was destroyed: %w", end)
	}
	c.counts.captured.Add(1)
	defer graph.Close() //nolint:errcheck // as above
	if err != nil {
		return err
	}
	x, err := graph.Instantiate()
	if err != nil {
		return err
	}
	defer x.Close() //nolint:errcheck // as above
	if err := x.Launch(c.s); err != nil {
		return err
	}
	got := make([]byte, 2*page)
	if err := c.s.CopyOut(got, c.g.Ptr()); err != nil {
		return err
	}
	for i, b := range got {
		if b != value {
			return fmt.Errorf("byte %d is %d instead of %d", i, b, value)
		}
	}
	return nil
}

// block has a kernel write to a block of the pool, reads it in another stream, and frees it there.
func (c *capturer) block() error {
	b, err := c.p.Alloc(c.s, page)
	if err != nil {
		return err
	}
	freedOn := c.s
	defer func() {
		for again := c.p.Free(freedOn, b); again != nil; again = c.p.Free(freedOn, b) {
			if c.expected(again) != nil {
				panic(again)
			}
		}
	}()
	value := c.r.Uint32N(1 << 24)
	if err := c.s.Fill(b.Ptr(), 0x01010101, 4, page/4); err != nil {
		return err
	}
	var arg vmm.MemoryArg
	b.MemoryArg(&arg)
	l := addLaunch(b.Ptr(), value)
	if err := c.add.Launch(c.s, l, []vmm.LaunchMemory{{MemoryArg: arg}}); err != nil {
		return err
	}
	written, err := c.s.Record()
	if err != nil {
		return err
	}
	defer written.Close() //nolint:errcheck // the device says so when it closes
	if err := c.other.Wait(written); err != nil {
		return err
	}
	freedOn = c.other
	got := make([]byte, page)
	if err := c.other.CopyOut(got, b.Ptr()); err != nil {
		return err
	}
	for i := 0; i < page; i += 4 {
		if is := binary.NativeEndian.Uint32(got[i:]); is != value+0x01010101 {
			return fmt.Errorf("word %d of a block is %#x instead of %#x", i/4, is, value+0x01010101)
		}
	}
	c.counts.blocks.Add(1)
	return nil
}

// sleep has the range sleep and wake, and looks at its bytes.
func (c *capturer) sleep() error {
	value := byte(c.r.Uint32())
	if err := c.s.Sync(); err != nil { // an AppendOn from before a SetLen would write here
		return err
	}
	if err := c.g.Append(bytes.Repeat([]byte{value}, 100)); err != nil {
		return err
	}
	at := c.g.Len() - 100
	if err := vmm.Sleep(vmm.SleepKeep, c.g); err != nil {
		return err
	}
	c.counts.slept.Add(1)
	for err := vmm.Wake(c.g); err != nil; err = vmm.Wake(c.g) {
		if c.expected(err) != nil {
			return err
		}
	}
	got := make([]byte, 100)
	if _, err := c.g.ReadAt(got, int64(at)); err != nil {
		return err
	}
	if !bytes.Equal(got, bytes.Repeat([]byte{value}, 100)) {
		return errors.New("a range that slept has other bytes")
	}
	return nil
}

// shrink takes half of the range away, and shows a part of it again, as it was.
func (c *capturer) shrink() error {
	if err := c.g.Append(bytes.Repeat([]byte{7}, 2*page)); err != nil {
		return err
	}
	half := c.g.Len() / 2
	was, is := make([]byte, page/2), make([]byte, page/2)
	if _, err := c.g.ReadAt(was, int64(half)); err != nil {
		return err
	}
	if err := c.g.SetLen(half); err != nil {
		return err
	}
	if err := c.g.SetLen(half + page/2); err != nil {
		return err
	}
	if _, err := c.g.ReadAt(is, int64(half)); err != nil {
		return err
	}
	if !bytes.Equal(was, is) {
		return errors.New("what was taken away and given back has changed")
	}
	return nil
}

// reopen opens the device once more, works on it, and closes it.
func (c *capturer) reopen() error {
	d, err := vmm.OpenDriver(c.d.Driver(), c.d.Info().Ordinal)
	if err != nil {
		return err
	}
	g, err := d.NewRange(vmm.RangeOptions{Max: page})
	if err == nil {
		err = g.Append([]byte{1})
	}
	for again := g.Close(); again != nil; again = g.Close() {
		if c.expected(again) != nil {
			return again
		}
	}
	for again := d.Close(); again != nil; again = d.Close() {
		if c.expected(again) != nil {
			return again
		}
	}
	return err
}

// step does one thing.
func (c *capturer) step() error {
	switch c.r.IntN(14) {
	case 10:
		return c.block()
	case 11:
		return c.sleep()
	case 12:
		return c.shrink()
	case 13:
		return c.reopen()
	case 0, 1, 2:
		return c.capture()
	case 3:
		if err := c.g.Append(make([]byte, c.r.IntN(4*page))); err != nil {
			return err
		}
		err := errors.Join(c.g.SetLen(0), c.g.Clip())
		c.counts.clipped.Add(1)
		return err
	case 4:
		return c.d.Sync()
	case 5:
		_, err := c.g.ReadAt(make([]byte, min(page, c.g.Len())), 0)
		return err
	case 6:
		return c.g.AppendOn(c.s, make([]byte, c.r.IntN(page)))
	case 7:
		s, err := c.d.NewStream()
		if err != nil {
			return err
		}
		err = s.Fill(c.g.Ptr(), 1, 1, 0)
		if _, done := s.Done(); err == nil {
			err = done
		}
		for again := s.Close(); again != nil; again = s.Close() {
			if c.expected(again) != nil {
				return again
			}
		}
		return err
	case 8:
		err := c.g.Close()
		for failed := errors.Is(err, errInjected); failed && err != nil; err = c.g.Close() {
			if again := c.expected(err); again != nil { // it is closing: nothing but Close works
				return again
			}
		}
		if err != nil {
			return err
		}
		for err = c.newRange(); errors.Is(err, errInjected); err = c.newRange() {
			c.counts.failed.Add(1)
		}
		return err
	default:
		return c.s.Sync()
	}
}

// TestCapturesBesideEverything: no capture is destroyed by what other goroutines do meanwhile,
// and no byte is wrong. VMM_CAPTURE_STEPS is how much each of VMM_CAPTURE_GOROUTINES does;
// VMM_CAPTURE_FAILING of 1000 calls fail.
func TestCapturesBesideEverything(t *testing.T) {
	steps := number("VMM_CAPTURE_STEPS", testgate.Effort(100, 5000, 100_000))
	failing := number("VMM_CAPTURE_FAILING", 0)
	w := newWorld(t, 1)
	var armed atomic.Bool
	w.before = func(call drivertest.Call) error {
		if armed.Load() && refusable[call.Name] && rand.IntN(1000) < failing {
			return errInjected
		}
		return nil
	}
	d := w.devs[0]
	vmm.SetGateOff(d, os.Getenv("VMM_CAPTURE_GATE") == "off")
	var over atomic.Bool
	var counts captureCounts
	var all sync.WaitGroup
	errs := make(chan error, 64)
	p, err := pool.New(d, pool.Options{})
	require.NoError(t, err)
	m, _, err := d.LoadModule(addCode())
	require.NoError(t, err)
	add, err := m.Function("add")
	require.NoError(t, err)
	var cs []*capturer
	for i := range number("VMM_CAPTURE_GOROUTINES", 8) {
		c := &capturer{d: d, r: rand.New(rand.NewPCG(uint64(i), rand.Uint64())), p: p, add: add, counts: &counts}
		c.s, c.other = stream(t, d), stream(t, d)
		require.NoError(t, c.newRange())
		cs = append(cs, c)
	}
	armed.Store(true)
	for _, c := range cs {
		all.Go(func() {
			for n := 0; n < steps && !over.Load(); n++ {
				if err := c.expected(c.step()); err != nil {
					errs <- err
					over.Store(true)
					return
				}
			}
		})
	}
	all.Wait()
	armed.Store(false)
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	t.Logf("%d captures, %d clips, %d sleeps, %d blocks; %d calls refused, %d failed in %d steps", counts.captured.Load(), counts.clipped.Load(),
		counts.slept.Load(), counts.blocks.Load(), counts.refused.Load(), counts.failed.Load(), steps)
	if t.Failed() {
		return
	}
	for _, c := range cs {
		require.NoError(t, c.g.Close())
		require.NoError(t, c.s.Close())
		require.NoError(t, c.other.Close())
	}
	require.NoError(t, p.Close())
	require.NoError(t, m.Close())
	w.end()
}

// refusable are the calls that TestCapturesBesideEverything may have refused.
var refusable = map[string]bool{
	"Create": true, "Map": true, "SetAccess": true, "Record": true, "RecordContext": true, "NewEvent": true, "SyncEvent": true,
	"Copy": true, "Fill": true, "BeginCapture": true, "EndCapture": true, "Instantiate": true, "LaunchGraph": true, "Wait": true,
}

// TestCapturesWithoutGates is the negative control of the test above: without the gates
// captures are destroyed, or the process dies.
func TestCapturesWithoutGates(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("the host driver holds the calls open with -tags invariants alone: make race runs it")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // it may hang, too
	defer cancel()
	child := exec.CommandContext(ctx, exe, "-test.run=^TestCapturesBesideEverything$", "-test.v", "-test.timeout=45s")
	child.Env = append(os.Environ(), "VMM_CAPTURE_GATE=off", "VMM_CAPTURE_STEPS=10000", "VMM_CAPTURE_FAILING=0")
	out, err := child.CombinedOutput()
	require.Error(t, err, "%s", out)
	t.Logf("%v: %.300s", err, out)
}

// finishCapture ends the stream's capture and closes its graph.
func finishCapture(t *testing.T, s *vmm.Stream) {
	t.Helper()
	graph, err := s.EndCapture()
	require.NoError(t, err)
	require.NoError(t, graph.Close())
}

// TestClipWhileItsStreamIsCaptured: memory that named streams use is unmapped when their
// capture ends, whichever others go on.
func TestClipWhileItsStreamIsCaptured(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s, other := stream(t, d), stream(t, d)
	g := ranged(t, w, 4*page)
	require.NoError(t, g.UsedBy(s))
	require.NoError(t, other.BeginCapture())
	require.NoError(t, s.BeginCapture())
	require.NoError(t, g.SetLen(0))
	require.NoError(t, g.Clip())
	require.NotZero(t, g.Stats().Retiring, "what the stream had may not have run")
	graph, err := s.EndCapture()
	require.NoError(t, err)
	require.Eventually(t, func() bool { return g.Stats().Retiring == 0 }, 10*time.Second, time.Millisecond)
	require.NoError(t, graph.Close())
	finishCapture(t, other)
	require.NoError(t, g.Close())
	require.NoError(t, errors.Join(s.Close(), other.Close()))
	w.end()
}

// TestHeldStreamIsNotCaptured: between Hold and its release no capture begins or ends.
func TestHeldStreamIsNotCaptured(t *testing.T) {
	w := newWorld(t, 1)
	s := stream(t, w.devs[0])
	_, capturing, release, err := s.Hold()
	require.NoError(t, err)
	require.False(t, capturing)
	require.ErrorIs(t, s.BeginCapture(), vmm.ErrBusy)
	release()
	require.NoError(t, s.BeginCapture())
	_, capturing, release, err = s.Hold()
	require.NoError(t, err)
	require.True(t, capturing)
	_, err = s.EndCapture()
	require.ErrorIs(t, err, vmm.ErrBusy)
	release()
	finishCapture(t, s)
	require.NoError(t, s.Close())
	w.end()
}

// TestCloseOfWhatACaptureUses is refused until the capture ends.
func TestCloseOfWhatACaptureUses(t *testing.T) {
	w := newWorld(t, 1)
	s, other := stream(t, w.devs[0]), stream(t, w.devs[0])
	g := ranged(t, w, page)
	require.NoError(t, g.UsedBy(s, other))
	require.NoError(t, s.BeginCapture())
	require.NoError(t, s.Fill(g.Ptr(), 1, 1, page))
	require.ErrorIs(t, g.Close(), vmm.ErrCapturing)
	require.ErrorIs(t, s.CopyIn(g.Ptr(), make([]byte, 10)), vmm.ErrCapturing, "its bytes would never arrive")
	graph, err := s.EndCapture()
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.NoError(t, graph.Close())
	require.NoError(t, errors.Join(s.Close(), other.Close()))
	w.end()
}

// TestRoomBehindAHeldStream: copies of the library's own wait before the driver's queue is
// full, and others go on meanwhile.
func TestRoomBehindAHeldStream(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	held, s := stream(t, d), stream(t, d)
	g := ranged(t, w, page)
	open := gate(t, held.Device(), held.Raw())
	require.NoError(t, g.UsedBy(held))
	var appended atomic.Int64
	done := begun(func() error {
		for range 2000 {
			if err := g.AppendOn(held, []byte{1}); err != nil {
				return err
			}
			appended.Add(1)
		}
		return nil
	})
	require.Eventually(t, func() bool { return appended.Load() > 20 }, 10*time.Second, time.Millisecond)
	for range 20 {
		require.NoError(t, s.BeginCapture())
		finishCapture(t, s)
	}
	require.Less(t, appended.Load(), int64(40))
	open()
	require.NoError(t, <-done)
	require.NoError(t, g.Close())
	require.NoError(t, errors.Join(held.Close(), s.Close()))
	w.end()
}
