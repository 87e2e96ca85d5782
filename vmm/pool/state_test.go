package pool_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestManyPiecesHideNone: the one free run that is long enough is found among many that are
// nearly so.
func TestManyPiecesHideNone(t *testing.T) {
	const page = 16 * kib
	for _, elsewhere := range []bool{false, true} {
		w := newWorld(t, 1, 16*mib)
		p, s, other := w.pool(pool.Options{Max: 16 * mib, ChunkSize: 512 * kib}), w.stream(0), w.stream(0)
		on := s
		if elsewhere {
			on = other
		}
		var long, gaps, rest []pool.Block
		long = append(long, alloc(t, p, on, 21*page))
		gaps = append(gaps, alloc(t, p, s, 8*page))
		for range 30 {
			long = append(long, alloc(t, p, on, 20*page))
			gaps = append(gaps, alloc(t, p, s, 8*page))
		}
		for n := uint64(32 * page); n >= page; {
			b, err := p.Alloc(s, n)
			if err != nil {
				n /= 2
				continue
			}
			rest = append(rest, b)
		}
		for _, b := range long {
			require.NoError(t, p.Free(on, b))
		}
		b, err := p.Alloc(s, 21*page)
		require.NoError(t, err, "freed elsewhere: %v", elsewhere)
		require.Equal(t, long[0].Ptr(), b.Ptr())
		for _, b := range append(append(gaps, rest...), b) {
			require.NoError(t, p.Free(s, b))
		}
		closeAll(t, s, other, p)
		w.end()
	}
}

// TestEventsDoNotAccumulate: streams that free long blocks all the time, and find their memory
// again at once, keep few events.
func TestEventsDoNotAccumulate(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s, other := w.pool(pool.Options{ReleaseThreshold: 16 * mib}), w.stream(0), w.stream(0)
	require.NoError(t, p.Free(other, alloc(t, p, other, 100)))
	for range 500 {
		require.NoError(t, p.Free(s, alloc(t, p, s, 4*chunk)))
	}
	_, fences := pool.Streams(p)
	require.LessOrEqual(t, fences, 16)
	require.Less(t, w.drv.Counts()["NewEvent"].Made, 50)
	closeAll(t, s, other, p)
	w.end()
}

// TestHeldBackStreamsKeepFewEvents, also if nothing of them ends.
func TestHeldBackStreamsKeepFewEvents(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, g := w.pool(pool.Options{ReleaseThreshold: 16 * mib}), w.gates(0)
	s, other := w.stream(0), w.stream(0)
	require.NoError(t, p.Free(other, alloc(t, p, other, 100)))
	open := g.hold(s)
	for range 500 {
		require.NoError(t, p.Free(s, alloc(t, p, s, 4*chunk)))
	}
	_, fences := pool.Streams(p)
	require.LessOrEqual(t, fences, 16)
	open()
	g.passed(s)
	b := alloc(t, p, other, 4*chunk)
	require.EqualValues(t, 4*chunk, statsOf(t, p).Used)
	require.NoError(t, p.Free(other, b))
	closeAll(t, s, other, p)
	w.end()
}

// TestShortLivedStreams: thousands of streams come and go, and leave neither memory nor
// state. The blocks of some outlive them.
func TestShortLivedStreams(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, main := w.pool(pool.Options{Max: 8 * mib}), w.stream(0)
	rnd := newRand(1)
	var old []pool.Block
	for i := range 2000 {
		s := w.stream(0)
		var mine []pool.Block
		for range rnd.IntN(4) {
			mine = append(mine, alloc(t, p, s, 1+rnd.Uint64N(100*kib)))
		}
		for _, b := range mine {
			switch rnd.IntN(3) {
			case 0:
				require.NoError(t, p.Free(s, b))
			case 1:
				require.NoError(t, p.Free(main, b))
			default:
				old = append(old, b)
			}
		}
		require.NoError(t, s.Close())
		for len(old) > 10 {
			require.NoError(t, p.Free(main, old[0]))
			old = old[1:]
		}
		if i%100 == 0 {
			require.NoError(t, main.Sync())
			require.NoError(t, pool.Check(p))
		}
	}
	for _, b := range old {
		require.NoError(t, p.Free(main, b))
	}
	require.NoError(t, main.Sync())
	last := w.stream(0)
	require.NoError(t, p.Free(last, alloc(t, p, last, 1)))
	streams, _ := pool.Streams(p)
	require.LessOrEqual(t, streams, 5)
	require.NoError(t, pool.Check(p))
	st := statsOf(t, p)
	require.LessOrEqual(t, st.UsedPeak, st.ReservedPeak)
	require.LessOrEqual(t, st.UsedPeak, uint64(5*mib), "each stream adds no more than 1 MiB")
	closeAll(t, last)
	require.NoError(t, main.Sync())
	_, err := p.TrimTo(0)
	require.NoError(t, err)
	require.Zero(t, statsOf(t, p).Reserved)
	closeAll(t, main, p)
	w.end()
}

// TestSlabsOfClosedStreamsAreAdopted: another stream allocates from them.
func TestSlabsOfClosedStreamsAreAdopted(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	var all []pool.Block
	for range 100 {
		on := w.stream(0)
		all = append(all, alloc(t, p, on, 1024))
		require.NoError(t, on.Close())
	}
	require.EqualValues(t, 2*chunk, max(2*chunk, statsOf(t, p).Reserved), "all of them are in the same slabs")
	for _, b := range all {
		require.NoError(t, p.Free(s, b))
	}
	require.NoError(t, pool.Check(p))
	closeAll(t, s, p)
	w.end()
}

// TestAdoptionBothWays: two closed streams may adopt of each other at once.
func TestAdoptionBothWays(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p := w.pool(pool.Options{})
	var streams []*vmm.Stream
	var all []pool.Block
	for range 2 {
		s := w.stream(0)
		streams = append(streams, s)
		for range 200 {
			all = append(all, alloc(t, p, s, 4*kib))
		}
	}
	for _, s := range streams {
		require.NoError(t, s.Close())
	}
	for _, b := range all {
		require.NoError(t, p.FreeNow(b))
	}
	var wait sync.WaitGroup
	for i := range streams {
		wait.Go(func() {
			for range 100000 {
				pool.Adopt(p, streams[i], streams[1-i], 4*kib)
			}
		})
	}
	wait.Wait()
	require.NoError(t, pool.Check(p))
	closeAll(t, p)
	w.end()
}

// TestStreamIsForgottenDuringAResize: the memory that the resize had taken is not forgotten
// with its stream, if the resize fails.
func TestStreamIsForgottenDuringAResize(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, g := w.pool(pool.Options{ReleaseThreshold: 16 * mib}), w.gates(0)
	s, other := w.stream(0), w.stream(0)
	b, next := alloc(t, p, s, 4*chunk), alloc(t, p, other, 4*chunk)
	require.Equal(t, b.Ptr()+4*chunk, next.Ptr())
	open := g.hold(other)
	require.NoError(t, p.Free(other, next))
	e, err := other.Record()
	require.NoError(t, err)
	require.NoError(t, s.Wait(e))
	w.watch(func(c drivertest.Call) error {
		if c.Name != "Map" {
			return nil
		}
		w.watch(nil)
		open()
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		next := w.stream(0) // at which streams that are closed are forgotten
		if b, err := p.Alloc(next, 0); err != nil || p.Free(next, b) != nil || next.Close() != nil {
			t.Error(err)
		}
		return errInjected
	})
	_, err = p.Resize(s, b, 12*chunk)
	require.ErrorIs(t, err, errInjected)
	require.NoError(t, pool.Check(p))
	require.NoError(t, p.Free(s, b))
	require.NoError(t, s.Sync())
	_, err = p.TrimTo(0)
	require.NoError(t, err)
	require.Zero(t, statsOf(t, p).Reserved)
	closeAll(t, e, s, p)
	w.end()
}
