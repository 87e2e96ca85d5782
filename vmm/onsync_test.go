package vmm_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// TestOnSync: f is called once for each Sync of the program's that succeeds, on any device of
// the driver, and finds what it has shown; for no other wait, and not after stop.
func TestOnSync(t *testing.T) {
	w, other := newWorld(t, 2), newWorld(t, 1)
	d := w.devs[0]
	s, e := stream(t, w.devs[1]), (*vmm.Event)(nil)
	calls, point := 0, uint64(0)
	stop := d.OnSync(func() {
		calls++
		require.Greater(t, s.Finished(), point)
	})
	e = record(t, s)
	f := fence(t, s)
	for name, do := range map[string]func() error{
		"Stream.Sync": s.Sync, "Event.Sync": e.Sync, "Fence.Sync": func() error { return vmm.SyncFence(s, f) }, "Device.Sync": w.devs[1].Sync,
	} {
		calls = 0
		require.NoError(t, do(), name)
		require.Equal(t, 1, calls, name)
	}
	calls, point = 0, 0
	w.refuse("SyncEvent", 2, errInjected)
	require.ErrorIs(t, e.Sync(), errInjected)
	require.ErrorIs(t, vmm.SyncFence(s, f), errInjected)
	w.refuse("RecordContext", 1, errInjected)
	require.ErrorIs(t, d.Sync(), errInjected)
	require.NoError(t, s.BeginCapture())
	require.ErrorIs(t, s.Sync(), vmm.ErrCapturing)
	graph, err := s.EndCapture()
	require.NoError(t, err)
	require.NoError(t, graph.Close())

	// The package's own waits, and questions.
	g := ranged(t, w, page)
	require.NoError(t, g.Grow(2*page))
	require.NoError(t, g.Clip())
	require.NoError(t, g.Close())
	r := holed(t, w)
	require.NoError(t, r.Unmap(0, page))
	require.NoError(t, r.UnmapNow(page, 2*page))
	require.NoError(t, r.Close())
	_, err = s.Done()
	require.NoError(t, err)
	_, err = e.Done()
	require.NoError(t, err)
	require.NoError(t, vmm.Fence{}.Sync())
	require.NoError(t, stream(t, d).Close())
	require.NoError(t, other.devs[0].Sync())
	require.Zero(t, calls)

	stop()
	stop()
	require.NoError(t, s.Sync())
	require.Zero(t, calls)
	f.Free()
	require.NoError(t, e.Close())
	require.NoError(t, s.Close())
	w.end()
	other.end()
	for _, gone := range []*vmm.Device{d, nil, {}} {
		gone.OnSync(func() { t.Error("called") })()
	}
}

// TestOnSyncThatSyncs: f may call the package; a Sync of its own calls no function of OnSync,
// whereas one of another goroutine does, also meanwhile.
func TestOnSyncThatSyncs(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s := stream(t, d)
	var calls [2]atomic.Int32
	inside, goOn := make(chan struct{}), make(chan struct{})
	stopFirst := d.OnSync(func() {
		if calls[0].Add(1) == 1 {
			close(inside)
			<-goOn
		}
		require.NoError(t, s.Sync())
		require.NoError(t, d.Sync())
		r := holed(t, w)
		require.NoError(t, r.UnmapNow(0, page))
		require.NoError(t, r.Close())
		_, err := d.Trim(0)
		require.NoError(t, err)
		d.OnSync(func() {})()
	})
	defer stopFirst()
	stopSecond := d.OnSync(func() { calls[1].Add(1) })
	defer stopSecond()
	first := begun(s.Sync)
	<-inside
	require.NoError(t, s.Sync(), "of this goroutine")
	require.EqualValues(t, 2, calls[0].Load())
	require.EqualValues(t, 1, calls[1].Load())
	close(goOn)
	require.NoError(t, <-first)
	require.EqualValues(t, 2, calls[0].Load())
	require.EqualValues(t, 2, calls[1].Load())
	deep(40, func() { require.NoError(t, s.Sync()) })
	require.EqualValues(t, 3, calls[0].Load())
	require.NoError(t, s.Close())
}

// deep calls f below n frames.
func deep(n int, f func()) {
	if n > 0 {
		deep(n-1, f)
		return
	}
	f()
}

// TestOnSyncFindsItselfDeepDown: also a Sync far below f calls nothing.
func TestOnSyncFindsItselfDeepDown(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	for _, frames := range []int{0, 20, 26, 32, 33, 200} {
		calls := 0
		stop := d.OnSync(func() {
			if calls++; calls < 10 {
				deep(frames, func() { require.NoError(t, d.Sync()) })
			}
		})
		require.NoError(t, d.Sync())
		require.Equal(t, 1, calls, "%d frames", frames)
		stop()
	}
	w.end()
}

// TestOnSyncStops: stop returns when no call is running, and a Device takes its functions
// along when it closes.
func TestOnSyncStops(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		running, goOn := make(chan struct{}), make(chan struct{})
		stop := d.OnSync(func() {
			close(running)
			<-goOn
		})
		synced := begun(d.Sync)
		<-running
		stopped := begun(func() error { stop(); return nil })
		pass(time.Second)
		require.Empty(t, stopped)
		close(goOn)
		require.NoError(t, <-synced)
		require.NoError(t, <-stopped)

		again, err := vmm.OpenDriver(w.drv, 0)
		require.NoError(t, err)
		calls := 0
		stop = again.OnSync(func() { calls++ })
		require.NoError(t, d.Sync())
		require.Equal(t, 1, calls)
		require.NoError(t, again.Close())
		require.NoError(t, d.Sync())
		require.Equal(t, 1, calls)
		stop()
	})
}
