package pool_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestPeakAfterResetIsWhatIsUsed: one stream alone, for which the peak is exact.
func TestPeakAfterResetIsWhatIsUsed(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	require.NoError(t, p.Free(s, alloc(t, p, s, 64*kib)))
	require.NoError(t, p.ResetPeaks())
	require.Zero(t, statsOf(t, p).UsedPeak, "nothing is allocated")
	closeAll(t, s, p)
	w.end()
}

// TestEventsForBlocksOfOtherStreams: a stream that does not come on is asked again and again
// with one event.
func TestEventsForBlocksOfOtherStreams(t *testing.T) {
	const n = 8 * kib
	w := newWorld(t, 1, 64*mib)
	p, g := w.pool(pool.Options{}), w.gates(0)
	s, other := w.stream(0), w.stream(0)
	first := alloc(t, p, s, n)
	open := g.hold(other)
	require.NoError(t, p.Free(other, first))
	var all []pool.Block
	for range 20 * 8 { // 20 slabs
		all = append(all, alloc(t, p, s, n))
	}
	_, fences := pool.Streams(p)
	require.Less(t, fences, 3)
	open()
	for _, b := range all {
		require.NoError(t, p.Free(s, b))
	}
	closeAll(t, s, other, p)
	w.end()
}

// TestCloseInAFunctionOfOnSync: a program may close a pool where it hears of a synchronisation.
func TestCloseInAFunctionOfOnSync(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	var p *pool.Pool
	stop := w.devs[0].OnSync(func() { _ = p.Close() })
	p = w.pool(pool.Options{})
	s := w.stream(0)
	done := make(chan error, 1)
	go func() { done <- s.Sync() }()
	require.Eventually(t, func() bool { return len(done) == 1 }, patience, waitStep, "Close waits for the Sync that has called it")
	require.NoError(t, <-done)
	stop()
	closeAll(t, s, p)
	w.end()
}

// TestWaitKeepsWhatItWaitedFor: memory for which Alloc has waited is used, and not given back and
// created anew because a wait is a synchronisation.
func TestWaitKeepsWhatItWaitedFor(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	p, g := w.pool(pool.Options{Max: 16 * chunk}), w.gates(0)
	s, other := w.stream(0), w.stream(0)
	var all []pool.Block
	for range 8 {
		all = append(all, alloc(t, p, other, 2*chunk))
	}
	open := g.hold(other)
	for i := 0; i < 8; i += 2 {
		require.NoError(t, p.Free(other, all[i]))
	}
	w.watch(openAtWait(open))
	before := statsOf(t, p)
	b := alloc(t, p, s, 6*chunk)
	w.watch(nil)
	after := statsOf(t, p)
	require.Zero(t, after.Released-before.Released)
	require.Zero(t, after.Created-before.Created)
	require.NoError(t, p.Free(s, b))
	for i := 1; i < 8; i += 2 {
		require.NoError(t, p.Free(s, all[i]))
	}
	closeAll(t, s, other, p)
	w.end()
}
