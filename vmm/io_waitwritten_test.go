package vmm_test

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

type writtenResult struct {
	n   uint64
	err error
}

// waitWritten runs WaitWritten in a goroutine, and returns when that waits.
func waitWritten(t *testing.T, ctx context.Context, w *world, g *vmm.Range) <-chan writtenResult { //nolint:revive // t first
	t.Helper()
	done := make(chan writtenResult, 1)
	w.arm()
	go func() {
		n, err := g.WaitWritten(ctx)
		done <- writtenResult{n, err}
	}()
	for !w.waiting(0) {
		runtime.Gosched()
	}
	return done
}

// there returns the bytes of the range, whatever is queued for it.
func there(t *testing.T, g *vmm.Range, s *vmm.Stream, n uint64) []byte {
	t.Helper()
	b := make([]byte, n)
	require.NoError(t, s.CopyOut(b, g.Ptr()))
	return b
}

func TestWaitWrittenWaitsForAppendOn(t *testing.T) {
	w := newWorld(t, 1)
	g, first := noisy(t, w, 10)
	s, side := stream(t, w.devs[0]), stream(t, w.devs[0])
	w.arm()
	n, err := g.WaitWritten(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 10, n)
	require.Empty(t, w.disarm(), "nothing is queued, so nothing is checked")

	open := gate(t, w.devs[0], s.Raw())
	second := noise(edge, 2)
	require.NoError(t, g.AppendOn(s, second))
	want := append(first, second...)
	done := waitWritten(t, t.Context(), w, g)
	require.NoError(t, g.Append([]byte{1}), "it delays no append")
	require.NotEqual(t, want, there(t, g, side, 10+edge), "the bytes have not arrived, and it has not said so")
	select {
	case r := <-done:
		t.Fatal("it did not wait", r)
	default:
	}
	open()
	require.Equal(t, writtenResult{n: 10 + edge}, <-done, "the length when it was called")
	require.Equal(t, want, there(t, g, side, 10+edge))

	w.arm()
	n, err = g.WaitWritten(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 11+edge, n)
	require.Empty(t, w.disarm(), "that stream has been waited for")
	require.NoError(t, s.Close())
	require.NoError(t, side.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestWaitWrittenLeavesLaterAppends: an AppendOn that comes during the wait is waited for by
// the next one.
func TestWaitWrittenLeavesLaterAppends(t *testing.T) {
	w := newWorld(t, 1)
	g, _ := noisy(t, w, 10)
	s, side := stream(t, w.devs[0]), stream(t, w.devs[0])
	open := gate(t, w.devs[0], s.Raw())
	require.NoError(t, g.AppendOn(s, noise(10, 2)))
	done := waitWritten(t, t.Context(), w, g)
	later := gate(t, w.devs[0], s.Raw())
	require.NoError(t, g.AppendOn(s, noise(10, 3)))
	require.NoError(t, g.AppendOn(side, noise(10, 4)))
	var opened sync.WaitGroup
	opened.Go(open) // which returns when the second gate is open too
	require.Equal(t, writtenResult{n: 20}, <-done)

	done = waitWritten(t, context.Background(), w, g)
	select {
	case r := <-done:
		t.Fatal("it did not wait", r)
	default:
	}
	later()
	opened.Wait()
	require.Equal(t, writtenResult{n: 40}, <-done)
	require.NoError(t, s.Close())
	require.NoError(t, side.Close())
	require.NoError(t, g.Close())
	w.end()
}

func TestWaitWrittenCancelled(t *testing.T) {
	w := newWorld(t, 1)
	g, _ := noisy(t, w, 10)
	s := stream(t, w.devs[0])
	open := gate(t, w.devs[0], s.Raw())
	require.NoError(t, g.AppendOn(s, noise(10, 2)))
	ctx, cancel := context.WithCancel(t.Context())
	done := waitWritten(t, ctx, w, g)
	cancel()
	require.ErrorIs(t, (<-done).err, context.Canceled)
	w.arm()
	for range 100 { // they all leave the wait to the first
		_, err := g.WaitWritten(ctx)
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Empty(t, w.disarm())
	open()
	n, err := g.WaitWritten(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 20, n)

	open = gate(t, w.devs[0], s.Raw())
	require.NoError(t, g.AppendOn(s, noise(10, 3)))
	ctx, cancel = context.WithCancel(t.Context())
	done = waitWritten(t, ctx, w, g)
	cancel()
	require.ErrorIs(t, (<-done).err, context.Canceled)
	open()
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end() // it waits until that wait has ended
}

// TestWaitWrittenOfAPeersStream: the peer's context stays open during the wait.
func TestWaitWrittenOfAPeersStream(t *testing.T) {
	w := newWorld(t, 2)
	g, _ := noisy(t, w, 10)
	require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[1]))
	s := stream(t, w.devs[1])
	open := gate(t, w.devs[1], s.Raw())
	require.NoError(t, g.AppendOn(s, noise(10, 2)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	w.arm()
	go func() {
		_, err := g.WaitWritten(ctx)
		done <- err
	}()
	for !w.waiting(1) {
		runtime.Gosched()
	}
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	open()
	require.NoError(t, s.Close())
	require.NoError(t, g.Revoke(w.devs[1]))
	require.NoError(t, w.devs[1].Close())
	require.NoError(t, g.Close())
	w.end()
}

func TestWaitWrittenDuringACapture(t *testing.T) {
	w := newWorld(t, 1)
	g, _ := noisy(t, w, 10)
	s := stream(t, w.devs[0])
	require.NoError(t, g.AppendOn(s, noise(10, 2)))
	c := raw(t, w.devs[0]).(driver.Grapher)
	require.NoError(t, c.BeginCapture(s.Raw(), driver.CaptureRelaxed))
	_, err := g.WaitWritten(t.Context())
	require.ErrorIs(t, err, vmm.ErrCapturing)
	require.NoError(t, endCapture(c, s.Raw()), "it is well")
	n, err := g.WaitWritten(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 20, n)
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestWaitWrittenOfClosedThings: a closed stream has been waited for.
func TestWaitWrittenOfClosedThings(t *testing.T) {
	w := newWorld(t, 1)
	g, _ := noisy(t, w, 10)
	s := stream(t, w.devs[0])
	require.NoError(t, g.UsedBy(s))
	require.NoError(t, g.AppendOn(s, noise(10, 2)))
	require.NoError(t, g.AppendOn(s, nil))
	require.NoError(t, s.Close())
	w.arm()
	n, err := g.WaitWritten(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 20, n)
	require.Empty(t, w.disarm())

	s = stream(t, w.devs[0])
	require.NoError(t, g.UsedBy(s))
	require.NoError(t, g.AppendOn(s, noise(10, 2)))
	_, err = g.WaitWritten(nil) //nolint:staticcheck // its result is tested
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = g.WaitWritten(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, vmm.Named(g), "Use still names it")
	require.NoError(t, s.Close())
	require.Zero(t, vmm.Named(g))
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	_, err = g.WaitWritten(t.Context())
	require.ErrorIs(t, err, vmm.ErrAsleep)
	require.NoError(t, g.Close())
	_, err = g.WaitWritten(t.Context())
	require.ErrorIs(t, err, vmm.ErrClosed)
	var none *vmm.Range
	_, err = none.WaitWritten(t.Context())
	require.ErrorIs(t, err, vmm.ErrInvalid)
	w.end()
}

// TestWaitWrittenOfALostDevice: lost work has not been written, closed or not.
func TestWaitWrittenOfALostDevice(t *testing.T) {
	mayLose(t)
	for _, closed := range []bool{false, true} {
		w := newWorld(t, 1)
		g, _ := noisy(t, w, 10)
		s := stream(t, w.devs[0])
		require.NoError(t, g.AppendOn(s, noise(10, 2)))
		lose(t, w, w.devs[0])
		if closed {
			require.ErrorIs(t, s.Close(), vmm.ErrDeviceLost)
		}
		for range 2 {
			_, err := g.WaitWritten(t.Context())
			require.ErrorIs(t, err, vmm.ErrDeviceLost)
		}
		require.ErrorIs(t, g.Close(), vmm.ErrDeviceLost)
	}
}

// TestWaitWrittenWhateverFails: a failed wait forgets nothing and keeps no event.
func TestWaitWrittenWhateverFails(t *testing.T) {
	for k := 1; ; k++ {
		w := newWorld(t, 1)
		g, _ := noisy(t, w, 10)
		s, other := stream(t, w.devs[0]), stream(t, w.devs[0])
		require.NoError(t, g.AppendOn(s, noise(10, 2)))
		require.NoError(t, g.AppendOn(other, noise(10, 3)))
		w.arm(k)
		_, err := g.WaitWritten(t.Context())
		made := w.disarm()
		calls := len(made)
		failed := err != nil
		if failed {
			require.ErrorIs(t, err, errInjected)
		} else {
			require.True(t, calls < k || forgiven(made, []int{k}), made)
		}
		w.arm()
		n, err := g.WaitWritten(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 30, n)
		require.Equal(t, failed, len(w.disarm()) > 0)
		require.NoError(t, s.Close())
		require.NoError(t, other.Close())
		require.NoError(t, g.Close())
		w.end()
		if calls < k {
			require.Greater(t, k, 6, "two streams are checked, recorded and waited for")
			return
		}
	}
}

// TestWaitWrittenOfAnotherContext: its streams cannot have our events.
func TestWaitWrittenOfAnotherContext(t *testing.T) {
	w := newWorld(t, 1)
	foreign, err := raw(t, w.devs[0]).NewStream()
	require.NoError(t, err)
	g, _ := noisy(t, w, 10)
	s := w.devs[0].WrapStream(uintptr(foreign))
	require.NoError(t, g.AppendOn(s, noise(10, 2)))
	w.before = func(c drivertest.Call) error {
		if c.Name == "Record" {
			return vmm.ErrInvalid
		}
		return nil
	}
	w.arm()
	n, err := g.WaitWritten(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 20, n)
	require.Contains(t, w.disarm(), "SyncStream")
	require.NoError(t, s.Close())
	require.NoError(t, raw(t, w.devs[0]).FreeStream(foreign))
	require.NoError(t, g.Close())
	w.end()
}

// TestWaitWrittenIsTrue: whatever others append meanwhile, and whichever wait is cancelled,
// the bytes below WaitWritten's result have arrived.
func TestWaitWrittenIsTrue(t *testing.T) {
	w := newWorld(t, 1)
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 512 * page})
	require.NoError(t, err)
	row := bytes.Repeat([]byte{0xa5}, 100)
	streams := make([]*vmm.Stream, 3)
	for i := range streams {
		streams[i] = stream(t, w.devs[0])
	}
	var appends, asks sync.WaitGroup
	for _, s := range streams {
		appends.Go(func() {
			for range 200 {
				if err := g.AppendOn(s, row); err != nil {
					t.Error(err)
				}
			}
		})
	}
	stop := make(chan struct{})
	for i := range 3 {
		side := stream(t, w.devs[0])
		asks.Go(func() {
			var last uint64
			for {
				ctx, cancel := context.WithCancel(t.Context())
				if i == 2 {
					go cancel()
				}
				n, err := g.WaitWritten(ctx)
				cancel()
				if i < 2 && err != nil || n < last && err == nil {
					t.Error(n, last, err)
				}
				if err == nil {
					b := make([]byte, n)
					if err := side.CopyOut(b, g.Ptr()); err != nil {
						t.Error(err)
					}
					if bytes.Count(b, []byte{0xa5}) != len(b) {
						t.Error("bytes below it had not arrived")
					}
					last = n
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	appends.Wait()
	close(stop)
	asks.Wait()
	n, err := g.WaitWritten(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 60000, n)
	for _, s := range streams {
		require.NoError(t, s.Close())
	}
	require.NoError(t, g.Close())
}
