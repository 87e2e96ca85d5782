package pool_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// idle has a pool with so many chunks that no block uses, each known to be so.
func idle(t *testing.T, p *pool.Pool, s *vmm.Stream, chunks uint64) {
	t.Helper()
	b := alloc(t, p, s, chunks*chunk)
	require.NoError(t, p.Free(s, b))
}

// TestThreshold: what is beyond it goes when something is synchronised, and never in Alloc
// and Free.
func TestThreshold(t *testing.T) {
	syncs := map[string]func(s *vmm.Stream, e *vmm.Event) error{
		"Stream.Sync": func(s *vmm.Stream, _ *vmm.Event) error { return s.Sync() },
		"Event.Sync":  func(_ *vmm.Stream, e *vmm.Event) error { return e.Sync() },
		"Device.Sync": func(s *vmm.Stream, _ *vmm.Event) error { return s.Device().Sync() },
	}
	for name, sync := range syncs {
		for _, keep := range []uint64{0, 1, 3 * chunk, 5*chunk + 1, 64 * chunk} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, 1, 16*mib)
				p, s := w.pool(pool.Options{ReleaseThreshold: keep}), w.stream(0)
				got, err := p.ReleaseThreshold()
				require.NoError(t, err)
				require.Equal(t, keep, got)
				idle(t, p, s, 8)
				for range 10 {
					idle(t, p, s, 1)
					for _, b := range blocks(t, p, s) {
						require.NoError(t, p.Free(s, b))
					}
				}
				held := statsOf(t, p).Reserved
				require.GreaterOrEqual(t, held, uint64(8*chunk))
				require.Zero(t, statsOf(t, p).Released)
				e, err := s.Record()
				require.NoError(t, err)
				require.NoError(t, sync(s, e))
				want := min(held, (keep+chunk-1)/chunk*chunk)
				st := statsOf(t, p)
				require.Equal(t, want, st.Reserved)
				require.Equal(t, held-want, st.Released)
				require.NoError(t, pool.Check(p))
				closeAll(t, e, s, p)
				w.end()
			})
		}
	}
}

// TestThresholdSparesWhatIsInUse: blocks, and memory whose work has not ended.
func TestThresholdSparesWhatIsInUse(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, g, s, other := w.pool(pool.Options{}), w.gates(0), w.stream(0), w.stream(0)
	live, pending := alloc(t, p, s, 2*chunk), alloc(t, p, s, 3*chunk)
	open := g.hold(s)
	require.NoError(t, s.Fill(pending.Ptr(), 1, 4, 100))
	require.NoError(t, p.Free(s, pending))
	idle(t, p, other, 4)
	require.NoError(t, other.Sync())
	st := statsOf(t, p)
	require.EqualValues(t, 5*chunk, st.Reserved)
	require.EqualValues(t, 3*chunk, st.Pending)
	freed, err := p.TrimTo(0)
	require.NoError(t, err)
	require.Zero(t, freed)
	open()
	require.NoError(t, s.Sync())
	st = statsOf(t, p)
	require.EqualValues(t, 2*chunk, st.Reserved)
	require.Zero(t, st.Pending)
	require.NoError(t, p.SetReleaseThreshold(2*chunk))
	require.NoError(t, p.Free(s, live))
	require.NoError(t, s.Sync())
	require.EqualValues(t, 2*chunk, statsOf(t, p).Reserved, "it was raised meanwhile")
	closeAll(t, s, other, p)
	w.end()
}

// TestTrimTo keeps what it is told to, gives back chunks in the middle, and returns how many
// bytes went.
func TestTrimTo(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{ReleaseThreshold: 16 * mib}), w.stream(0)
	free := w.free(0)
	var all []pool.Block
	for range 9 {
		all = append(all, alloc(t, p, s, chunk+1))
	}
	reserved := statsOf(t, p).Reserved
	require.Equal(t, free-reserved, w.free(0))
	for i := 1; i < 9; i += 2 {
		require.NoError(t, p.Free(s, all[i]))
	}
	require.NoError(t, s.Sync())
	freed, err := p.TrimTo(reserved)
	require.NoError(t, err)
	require.Zero(t, freed)
	freed, err = p.TrimTo(reserved - 1)
	require.NoError(t, err)
	require.Zero(t, freed, "a part of a chunk stays")
	freed, err = p.TrimTo(reserved - chunk)
	require.NoError(t, err)
	require.EqualValues(t, chunk, freed)
	for {
		more, err := p.TrimTo(0)
		require.NoError(t, err)
		require.NoError(t, pool.Check(p))
		if freed += more; more == 0 {
			break
		}
	}
	st := statsOf(t, p)
	require.GreaterOrEqual(t, freed, uint64(2*chunk), "chunks between blocks")
	require.Equal(t, reserved-freed, st.Reserved)
	require.Equal(t, freed, st.Released)
	require.Equal(t, free-st.Reserved, w.free(0))
	for i := 0; i < 9; i += 2 {
		require.NoError(t, s.Fill(all[i].Ptr(), 1, 1, all[i].Size()), "it is mapped")
		require.NoError(t, p.Free(s, all[i]))
	}
	require.NoError(t, s.Sync())
	_, err = p.TrimTo(0)
	require.NoError(t, err)
	require.Zero(t, statsOf(t, p).Reserved)
	require.Equal(t, free, w.free(0))
	closeAll(t, s, p)
	w.end()
}

// TestTrimToAsks: memory whose work has ended goes at the first try, also that of short
// blocks, and of those that were freed in another stream.
func TestTrimToAsks(t *testing.T) {
	for _, n := range []uint64{100, 66 * kib, 5 * chunk} {
		for _, elsewhere := range []bool{false, true} {
			w := newWorld(t, 1, 16*mib)
			p, off, g := w.pool(pool.Options{}), w.pool(pool.Options{NoReuse: pool.ReuseOpportunistic}), w.gates(0)
			s, other := w.stream(0), w.stream(0)
			on := s
			if elsewhere {
				on = other
			}
			for _, x := range []*pool.Pool{p, off} {
				b := alloc(t, x, s, n)
				require.NoError(t, on.Fill(b.Ptr(), 1, 1, n))
				require.NoError(t, x.Free(on, b))
			}
			g.passed(on)
			freed, err := off.TrimTo(0)
			require.NoError(t, err)
			require.Zero(t, freed, "the policy is off")
			_, err = p.TrimTo(0)
			require.NoError(t, err)
			require.Zero(t, statsOf(t, p).Reserved, "%d bytes, freed elsewhere: %v", n, elsewhere)
			closeAll(t, s, other, p, off)
			w.end()
		}
	}
}

// TestTrimmedMemoryIsEveryones: another device of the same memory gets it.
func TestTrimmedMemoryIsEveryones(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	again, err := vmm.OpenDriver(w.drv, 0)
	require.NoError(t, err)
	p, s := w.pool(pool.Options{ReleaseThreshold: 16 * mib}), w.stream(0)
	idle(t, p, s, 16*mib/chunk)
	require.NoError(t, s.Sync())
	require.Zero(t, w.free(0))
	_, err = p.TrimTo(0)
	require.NoError(t, err)
	r, err := again.Alloc(16 * mib)
	require.NoError(t, err)
	_, err = p.Alloc(s, 1)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	closeAll(t, r, again)
	require.NoError(t, p.Free(s, alloc(t, p, s, 1)))
	closeAll(t, s, p)
	w.end()
}

// TestMemoryGoesToRanges by way of what the device caches, and comes back, without a driver
// call that creates memory.
func TestMemoryGoesToRanges(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	d := w.devs[0]
	d.SetReleaseThreshold(16 * mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	idle(t, p, s, 8)
	require.NoError(t, s.Sync())
	require.Zero(t, statsOf(t, p).Reserved)
	require.EqualValues(t, 8*chunk, d.Stats().Cached)
	calls := w.calls(func() {
		g, err := d.NewRange(vmm.RangeOptions{Max: 8 * chunk, Chunk: chunk})
		require.NoError(t, err)
		require.NoError(t, g.Grow(8*chunk))
		require.Zero(t, d.Stats().Cached)
		closeAll(t, g)
		require.EqualValues(t, 8*chunk, d.Stats().Cached)
		idle(t, p, s, 8)
		require.Zero(t, d.Stats().Cached)
	})
	require.NotContains(t, calls, "Create")
	require.NotContains(t, calls, "Release")
	closeAll(t, s, p)
	w.end()
}

// TestSharedMemoryIsNotCached, nor taken from what the device caches.
func TestSharedMemoryIsNotCached(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	d := w.devs[0]
	d.SetReleaseThreshold(16 * mib)
	c, err := d.Create(chunk, vmm.Prop{})
	require.NoError(t, err)
	closeAll(t, c)
	require.EqualValues(t, chunk, d.Stats().Cached)
	p, s := w.pool(pool.Options{Share: vmm.ShareFD}), w.stream(0)
	idle(t, p, s, 2)
	require.EqualValues(t, chunk, d.Stats().Cached)
	require.NoError(t, s.Sync())
	require.Zero(t, statsOf(t, p).Reserved)
	require.EqualValues(t, chunk, d.Stats().Cached)
	closeAll(t, s, p)
	w.end()
}

// TestPressure: a range that runs out of memory gets what no block of a pool uses.
func TestPressure(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	d := w.devs[0]
	p, g, s := w.pool(pool.Options{ReleaseThreshold: 16 * mib}), w.gates(0), w.stream(0)
	live, pending := alloc(t, p, s, 16*chunk), alloc(t, p, s, 16*chunk)
	idle(t, p, s, 16*mib/chunk-32)
	require.NoError(t, s.Sync())
	open := g.hold(s)
	require.NoError(t, s.Fill(pending.Ptr(), 1, 4, 100))
	require.NoError(t, p.Free(s, pending))
	require.Zero(t, w.free(0))
	r, err := d.Alloc(16*mib - 32*chunk)
	require.NoError(t, err)
	_, err = d.Alloc(1)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory, "the other work has not ended")
	require.NoError(t, pool.Check(p))
	open()
	g.passed(s)
	one, err := d.Alloc(16 * chunk)
	require.NoError(t, err)
	closeAll(t, r, one)
	require.NoError(t, p.Free(s, live))
	closeAll(t, s, p)
	w.end()
}

// TestPoolsPressEachOther: of two that fill the device each gets what the other one does not
// need.
func TestPoolsPressEachOther(t *testing.T) {
	w := newWorld(t, 1, 8*mib)
	var all sync.WaitGroup
	var pools []*pool.Pool
	for range 2 {
		pools = append(pools, w.pool(pool.Options{ReleaseThreshold: 8 * mib}))
	}
	var streams []*vmm.Stream
	for i, p := range pools {
		s := w.stream(0)
		streams = append(streams, s)
		all.Go(func() {
			rnd := newRand(uint64(i))
			for range 300 {
				b, err := p.Alloc(s, 1+rnd.Uint64N(5*mib))
				if err == nil {
					err = p.Free(s, b)
				}
				if err != nil && !errors.Is(err, vmm.ErrOutOfMemory) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for i, p := range pools {
		require.NoError(t, pool.Check(p))
		closeAll(t, streams[i], p)
	}
	w.end()
}

// TestSpareChunks: chunks that could not be mapped are the pool's, and are given back.
func TestSpareChunks(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	w.watch(drivertest.FailNth("Map", 2, errInjected))
	_, err := p.Alloc(s, 4*chunk)
	require.ErrorIs(t, err, errInjected)
	w.watch(nil)
	require.NoError(t, pool.Check(p))
	require.EqualValues(t, 4*chunk, statsOf(t, p).Reserved)
	idle(t, p, s, 4)
	require.EqualValues(t, 4*chunk, statsOf(t, p).Reserved)
	require.NoError(t, s.Sync())
	require.Zero(t, statsOf(t, p).Reserved)
	closeAll(t, s, p)
	w.end()
}

// TestHeldChunksStay: what a Hold keeps is neither moved nor given back, and other memory is.
func TestHeldChunksStay(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{ReleaseThreshold: 16 * mib}), w.stream(0)
	first, second, third := alloc(t, p, s, 2*chunk), alloc(t, p, s, 2*chunk), alloc(t, p, s, 2*chunk)
	require.NoError(t, p.Free(s, first))
	require.NoError(t, p.Free(s, third))
	require.NoError(t, s.Sync())
	release, err := p.Reservation().Hold(uint64(first.Ptr()-p.Reservation().Ptr()), 1)
	require.NoError(t, err)
	b, err := p.Alloc(s, 5*chunk)
	require.NoError(t, err, "new memory can be had")
	require.NoError(t, p.Free(s, b))
	require.NoError(t, s.Sync())
	_, err = p.TrimTo(0)
	require.True(t, err == nil || errors.Is(err, vmm.ErrBusy), err)
	require.NoError(t, pool.Check(p))
	require.LessOrEqual(t, statsOf(t, p).Reserved, uint64(4*chunk))
	got := make([]byte, 1)
	require.NoError(t, w.devs[0].CopyOut(got, first.Ptr()))
	release()
	_, err = p.TrimTo(0)
	require.NoError(t, err)
	require.EqualValues(t, 2*chunk, statsOf(t, p).Reserved)
	require.NoError(t, p.Free(s, second))
	closeAll(t, s, p)
	w.end()
}
