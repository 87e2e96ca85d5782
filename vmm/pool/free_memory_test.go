package pool_test

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// pairsBeside has four goroutines, each with a stream, allocate and free a block at a time, n
// times, and synchronise after every so many.
func pairsBeside(t *testing.T, d *vmm.Device, p *pool.Pool, size uint64, n, every int) {
	t.Helper()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			s, err := d.NewStream()
			if err != nil {
				t.Error(err)
				return
			}
			for i := range n {
				b, err := p.Alloc(s, size)
				if err == nil {
					err = p.Free(s, b)
				}
				if err == nil && (i+1)%every == 0 {
					err = s.Sync()
				}
				if err != nil {
					t.Error(err)
					break
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestPairsBesideEachOther: of a pool of a few chunks four goroutines need one block each, and none
// fails while the others map chunks, or give them back because they synchronise.
func TestPairsBesideEachOther(t *testing.T) {
	for _, o := range []struct {
		pool.Options
		noSync bool
	}{
		{Options: pool.Options{Max: 8 * mib}},
		{Options: pool.Options{Max: 16 * mib}},
		{Options: pool.Options{Max: 8 * mib, ChunkSize: 2 * mib}},
		{Options: pool.Options{Max: 8 * mib, ReleaseThreshold: 8 * mib}},
		{Options: pool.Options{Max: 8 * mib}, noSync: true},
		{Options: pool.Options{Max: 64 * mib}, noSync: true},
	} {
		t.Run(fmt.Sprintf("Max %d ChunkSize %d threshold %d sync %v", o.Max, o.ChunkSize, o.ReleaseThreshold, !o.noSync), func(t *testing.T) {
			d, err := vmm.Open("host")
			require.NoError(t, err)
			p, err := pool.New(d, o.Options)
			require.NoError(t, err)
			every := 1
			if o.noSync {
				every = math.MaxInt
			}
			pairsBeside(t, d, p, 256*kib, testgate.Effort(1000, 5000, 100_000), every)
			require.NoError(t, pool.Check(p))
			closeAll(t, p, d)
		})
	}
}

// TestFreedInAStreamThatLags: blocks of all sizes, which a producer allocates and a consumer frees
// in a stream that is held back, are had again: the producer's stream waits.
func TestFreedInAStreamThatLags(t *testing.T) {
	for _, size := range []uint64{256, 4 * kib, 60_000, 100_000} {
		w := newWorld(t, 1, 64*mib)
		g := w.gates(0)
		p, a, b := w.pool(pool.Options{Max: 8 * mib, ReleaseThreshold: math.MaxUint64}), w.stream(0), w.stream(0)
		open := g.hold(b)
		for range 8*mib/size + 100 {
			x, err := p.Alloc(a, size)
			require.NoError(t, err, "%d bytes", size)
			f, err := fences.Fence(a)
			require.NoError(t, err)
			require.NoError(t, fences.WaitFence(b, f))
			f.Free()
			require.NoError(t, p.Free(b, x))
		}
		require.NotZero(t, statsOf(t, p).Waits)
		require.NoError(t, pool.Check(p))
		open()
		closeAll(t, a, b, p)
		w.end()
	}
}

// fill allocates until there is no memory.
func fill(t testing.TB, p *pool.Pool, s *vmm.Stream, size uint64) (all []pool.Block) {
	t.Helper()
	for {
		b, err := p.Alloc(s, size)
		if err != nil {
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			return all
		}
		all = append(all, b)
	}
}

// TestBlocksOfAnotherStreamsSlabs: free blocks of slabs, in each of which some blocks are
// allocated, go to another stream: once their work has ended, once that stream comes after it, or
// once it is made to.
func TestBlocksOfAnotherStreamsSlabs(t *testing.T) {
	for _, size := range []uint64{256, 4 * kib, 40_000} {
		for name, order := range map[string]func(w *world, a, b *vmm.Stream){
			"synchronised": func(_ *world, a, _ *vmm.Stream) { require.NoError(t, a.Sync()) },
			"closed":       func(_ *world, a, _ *vmm.Stream) { require.NoError(t, a.Close()) },
			"waited for": func(_ *world, a, b *vmm.Stream) {
				f, err := fences.Fence(a)
				require.NoError(t, err)
				require.NoError(t, fences.WaitFence(b, f))
				f.Free()
			},
			"": func(*world, *vmm.Stream, *vmm.Stream) {},
		} {
			w := newWorld(t, 1, 64*mib)
			p, a, b := w.pool(pool.Options{Max: 2 * mib, ReleaseThreshold: math.MaxUint64}), w.stream(0), w.stream(0)
			all := fill(t, p, a, size)
			freed := 0
			for i, x := range all {
				if i%8 > 0 {
					require.NoError(t, p.Free(a, x))
					freed++
				}
			}
			require.GreaterOrEqual(t, statsOf(t, p).InSlabs, uint64(freed)*size*7/8) // some are pages of their own
			order(w, a, b)
			var got []pool.Block
			for range freed {
				x, err := p.Alloc(b, size-100) // of the same slabs
				if errors.Is(err, vmm.ErrOutOfMemory) {
					break
				}
				require.NoError(t, err)
				got = append(got, x)
			}
			require.Len(t, got, freed, "%d bytes, freed in a stream that is %q", size, name)
			require.NoError(t, pool.Check(p))
			for i, x := range all {
				if i%8 == 0 {
					require.NoError(t, p.FreeNow(x))
				}
			}
			for _, x := range got {
				require.NoError(t, p.Free(b, x))
			}
			require.NoError(t, b.Sync())
			require.NoError(t, pool.Check(p))
			closeAll(t, a, b, p)
			w.end()
		}
	}
}

// TestBlocksOfLongerSlabs: a short block takes one of a longer kind if there is nothing else.
func TestBlocksOfLongerSlabs(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	p, s := w.pool(pool.Options{Max: 2 * mib}), w.stream(0)
	all := fill(t, p, s, 4*kib)
	require.NoError(t, p.Free(s, all[0]))
	x := alloc(t, p, s, 100)
	require.Equal(t, all[0].Ptr(), x.Ptr())
	_, err := p.Alloc(s, 100)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	for _, b := range append(all[1:], x) {
		require.NoError(t, p.Free(s, b))
	}
	require.NoError(t, pool.Check(p))
	closeAll(t, s, p)
	w.end()
}

// TestWholeSlabsOfSeveralStreams: pages come of slabs all of whose blocks are free, although they
// were freed in several streams.
func TestWholeSlabsOfSeveralStreams(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	p := w.pool(pool.Options{Max: 2 * mib, ReleaseThreshold: math.MaxUint64})
	g := w.gates(0)
	streams := []*vmm.Stream{w.stream(0), w.stream(0), w.stream(0)}
	all := fill(t, p, streams[0], 4*kib)
	f, err := fences.Fence(streams[0])
	require.NoError(t, err)
	open := g.hold(streams[1])
	for _, s := range streams[1:] {
		require.NoError(t, fences.WaitFence(s, f))
	}
	f.Free()
	for i, x := range all {
		require.NoError(t, p.Free(streams[i%3], x))
	}
	b := alloc(t, p, streams[2], 2*mib)
	require.NoError(t, pool.Check(p))
	open()
	require.NoError(t, p.Free(streams[2], b))
	closeAll(t, streams[0], streams[1], streams[2], p)
	w.end()
}

// TestNoTheft: with no stream made to wait, what a stream has freed itself it can have again,
// whatever others have looked for in vain.
func TestNoTheft(t *testing.T) {
	for _, reuse := range []pool.Reuse{pool.ReuseFollowEvents, pool.ReuseFollowEvents | pool.ReuseOpportunistic} {
		for _, size := range []uint64{256, 4 * kib, 30_000, chunk, 3 * chunk} {
			w := newWorld(t, 1, 64*mib)
			p, g := w.pool(pool.Options{Max: 2 * mib, NoReuse: pool.ReuseAll &^ reuse}), w.gates(0)
			a, b := w.stream(0), w.stream(0)
			all := fill(t, p, a, size)
			open := g.hold(a)
			for i := 0; i < len(all); i += 2 { // so that no slab is empty
				require.NoError(t, p.Free(a, all[i]))
			}
			f, err := fences.Fence(a)
			require.NoError(t, err)
			require.NoError(t, fences.WaitFence(b, f)) // so b may have it
			f.Free()
			_, err = p.Alloc(b, 2*mib)
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			one := alloc(t, p, b, size)
			for i := 2; i < len(all); i += 2 {
				all[i] = alloc(t, p, a, size)
			}
			require.NoError(t, pool.Check(p))
			open()
			for _, x := range all[1:] {
				require.NoError(t, p.Free(a, x))
			}
			require.NoError(t, p.Free(b, one))
			closeAll(t, a, b, p)
			w.end()
		}
	}
}

// TestManyStreamsShareSlabs: a block each of a thousand streams takes little more than the blocks.
func TestManyStreamsShareSlabs(t *testing.T) {
	d, err := vmm.OpenDriver(nulldriver.NewSized(8<<30), 0)
	require.NoError(t, err)
	p, err := pool.New(d, pool.Options{ChunkSize: 2 * mib})
	require.NoError(t, err)
	const n, size = 1000, 1000
	var streams []*vmm.Stream
	var all []pool.Block
	for range n {
		s, err := d.NewStream()
		require.NoError(t, err)
		streams = append(streams, s)
		all = append(all, alloc(t, p, s, size))
	}
	require.LessOrEqual(t, statsOf(t, p).Reserved, uint64(3*n*size+8*mib))
	require.NoError(t, pool.Check(p))
	for i, b := range all {
		require.NoError(t, p.Free(streams[i], b))
		require.NoError(t, p.Free(streams[i], alloc(t, p, streams[i], size)))
	}
	require.NoError(t, pool.Check(p))
	for _, s := range streams {
		require.NoError(t, s.Close())
	}
	closeAll(t, p, d)
}

// TestNumbersOfBlocks stay apart when a stream has used up its lease of them.
func TestNumbersOfBlocks(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, a, b := w.pool(pool.Options{}), w.stream(0), w.stream(0)
	first, other := alloc(t, p, a, 100), alloc(t, p, b, 100)
	pool.SetSeq(p, a)
	x := alloc(t, p, a, 100)
	require.NoError(t, p.FreeNow(x)) // earlier work of a may use its memory: it is a's
	y, z := alloc(t, p, b, 100), alloc(t, p, a, 100)
	require.NotEqual(t, x.Ptr(), y.Ptr())
	require.Equal(t, x.Ptr(), z.Ptr())
	require.ErrorIs(t, p.Free(a, x), pool.ErrDoubleFree)
	require.NoError(t, p.Free(b, y))
	require.NoError(t, p.Free(a, z))
	require.NoError(t, p.Free(a, first))
	require.NoError(t, p.Free(b, other))
	require.ErrorIs(t, p.Free(b, other), pool.ErrDoubleFree)
	require.NoError(t, pool.Check(p))
	closeAll(t, a, b, p)
	w.end()
}

// TestFreedArguments: a block that was freed is refused as an argument, also when another has its
// memory.
func TestFreedArguments(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	m, err := kernel.Load(w.devs[0], kernel.Code{Host: kernel.Host{"put": func(x []byte, v uint8) { x[0] = v }}})
	require.NoError(t, err)
	f, err := m.Func("put")
	require.NoError(t, err)
	builtins, err := kernel.LoadBuiltins(w.devs[0])
	require.NoError(t, err)
	for _, size := range []uint64{5000, 200_000} {
		p, s := w.pool(pool.Options{ReleaseThreshold: math.MaxUint64}), w.stream(0)
		a := alloc(t, p, s, size)
		bound, err := f.Bind(kernel.Config{}, a, uint8(1))
		require.NoError(t, err)
		require.NoError(t, bound.Launch(s))
		require.NoError(t, p.Free(s, a))
		b := alloc(t, p, s, size)
		require.Equal(t, a.Ptr(), b.Ptr())
		for name, err := range map[string]error{
			"launch": f.Launch(s, kernel.Config{}, a, uint8(9)), "bound": bound.Launch(s),
			"fill":      builtins.FillPattern(s, a, kernel.Pattern{}),
			"copy to":   builtins.Copy(s, a, b),
			"copy from": builtins.Copy(s, b, a),
		} {
			require.ErrorIs(t, err, vmm.ErrInvalid, name)
			require.ErrorContains(t, err, "freed", name)
		}
		require.NoError(t, f.Launch(s, kernel.Config{}, b, uint8(1)))
		require.NoError(t, p.Free(s, b))
		closeAll(t, s, p)
	}
	closeAll(t, builtins, m)
	w.end()
}

// TestCloseBesideFree: a Close that is refused does not make a Free or an Alloc beside it fail.
func TestCloseBesideFree(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	p := w.pool(pool.Options{Max: 16 * mib})
	var workers, closer sync.WaitGroup
	var stop atomic.Bool
	closer.Go(func() {
		for !stop.Load() {
			if err := p.Close(); !errors.Is(err, vmm.ErrBusy) && err != nil {
				t.Error(err)
				return
			} else if err == nil {
				return
			}
		}
	})
	for range 4 {
		workers.Go(func() {
			s, err := w.devs[0].NewStream()
			if err != nil {
				t.Error(err)
				return
			}
			for i := range testgate.Effort(2000, 5000, 50_000) {
				b, err := p.Alloc(s, uint64(100+i%60*5000))
				if errors.Is(err, vmm.ErrClosed) {
					break
				}
				if err == nil {
					err = p.Free(s, b)
				}
				if err != nil {
					t.Error(err)
					break
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	workers.Wait()
	stop.Store(true)
	closer.Wait()
	closeAll(t, p)
	w.end()
}

// TestShortageFromOutside: short Allocs beside a range that takes all memory, and gives it back
// when it is asked, all return with memory.
func TestShortageFromOutside(t *testing.T) {
	w := newWorld(t, 1, 32*chunk)
	d := w.devs[0]
	p := w.pool(pool.Options{ChunkSize: 2 * chunk, ReleaseThreshold: math.MaxUint64})
	r, err := d.Alloc(32 * chunk)
	require.NoError(t, err)
	var asked atomic.Int64
	stop := d.OnPressure(func(error) bool {
		if asked.Add(1) > 1 {
			return false
		}
		return r.Close() == nil
	})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := d.NewStream()
			if err != nil {
				t.Error(err)
				return
			}
			for range 50 {
				b, err := p.Alloc(s, 30*kib)
				if err == nil {
					err = p.Free(s, b)
				}
				if err != nil {
					t.Error(err)
					break
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	stop()
	require.NoError(t, pool.Check(p))
	closeAll(t, p)
	w.end()
}

// TestBeyondTheLimit: what no release can help asks no function.
func TestBeyondTheLimit(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	d := w.devs[0]
	d.SetLimit(4 * mib)
	asked := 0
	stop := d.OnPressure(func(error) bool { asked++; return asked < 100 })
	defer stop()
	p, s := w.pool(pool.Options{}), w.stream(0)
	_, err := p.Alloc(s, 16*mib)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.Zero(t, asked)
	closeAll(t, s, p)
	w.end()
}

// TestMovesThatFail: an Alloc whose chunks have to move fails as the driver says, and leaves the
// pool as it was.
func TestMovesThatFail(t *testing.T) {
	for _, call := range []string{"Map", "SetAccess", "Unmap"} {
		w := newWorld(t, 1, 16*mib)
		p, s := w.pool(pool.Options{Max: 16 * chunk, ReleaseThreshold: math.MaxUint64}), w.stream(0)
		var all []pool.Block
		for range 8 {
			all = append(all, alloc(t, p, s, 2*chunk))
		}
		for i := 0; i < 8; i += 2 {
			require.NoError(t, p.Free(s, all[i]))
		}
		require.NoError(t, s.Sync())
		w.watch(func(c drivertest.Call) error {
			if c.Name == call {
				return driver.ErrOutOfMemory
			}
			return nil
		})
		_, err := p.Alloc(s, 4*chunk)
		require.ErrorIs(t, err, vmm.ErrOutOfMemory)
		w.watch(nil)
		_, err = p.TrimTo(math.MaxUint64) // which repairs
		require.NoError(t, err)
		require.NoError(t, p.Free(s, alloc(t, p, s, 4*chunk)))
		for i := 1; i < 8; i += 2 {
			require.NoError(t, p.Free(s, all[i]))
		}
		require.NoError(t, pool.Check(p))
		closeAll(t, s, p)
		w.end()
	}
}

// TestSlabsBesideEachOther: of a pool four streams need a slab each, and none fails while the
// others' slabs are about to be made.
func TestSlabsBesideEachOther(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p := w.pool(pool.Options{Max: 8 * chunk})
	pairsBeside(t, w.devs[0], p, 64*kib, testgate.Effort(10_000, 50_000, 500_000), 64)
	require.NoError(t, pool.Check(p))
	closeAll(t, p)
	w.end()
}

// TestScatteredAddresses: when all addresses are in pieces too short, free chunks between them go,
// and the longest block there can be fits.
func TestScatteredAddresses(t *testing.T) {
	const most = 128 * chunk
	for seed := range testgate.Effort[uint64](6, 12, 50) {
		w := newWorld(t, 1, 64*mib)
		p, g := w.pool(pool.Options{Max: most, ReleaseThreshold: math.MaxUint64}), w.gates(0)
		s, rnd := w.stream(0), newRand(seed)
		var live []pool.Block
		used := uint64(0)
		open := func() {}
		w.watch(openAtWait(func() { open() }))
		for range 3000 {
			switch rnd.IntN(8) {
			case 0:
				open()
				open = g.hold(s)
			case 1:
				open()
			}
			n := []uint64{2, 3, 4, 8}[rnd.IntN(4)] * chunk
			if used+n <= most {
				live, used = append(live, alloc(t, p, s, n)), used+n
				continue
			}
			i := rnd.IntN(len(live))
			used -= live[i].Size()
			require.NoError(t, p.Free(s, live[i]))
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
		}
		open()
		for _, b := range live {
			require.NoError(t, p.Free(s, b))
		}
		require.NoError(t, s.Sync())
		require.NoError(t, p.Free(s, alloc(t, p, s, most)))
		require.NoError(t, pool.Check(p))
		closeAll(t, s, p)
		w.end()
	}
}

// TestIdleBlocksStayIdle: a block whose work is known to have ended goes to any stream at once,
// although its neighbour in the slab was freed in a stream that is held back.
func TestIdleBlocksStayIdle(t *testing.T) {
	for _, reuse := range []pool.Reuse{0, pool.ReuseAll} {
		for _, elsewhere := range []bool{false, true} { // it was freed in b, and is remote
			w := newWorld(t, 1, 16*mib)
			p, g := w.pool(pool.Options{Max: mib, NoReuse: pool.ReuseAll &^ reuse}), w.gates(0)
			a, b := w.stream(0), w.stream(0)
			all := fill(t, p, a, 4*kib)
			require.NoError(t, a.Sync())
			from := a
			if elsewhere {
				from = b
			}
			require.NoError(t, p.Free(from, all[0]))
			require.NoError(t, from.Sync())
			open := g.hold(a)
			require.NoError(t, p.Free(a, all[1]))
			_, err := p.Alloc(a, 64*kib) // in vain, after which the block is in its slab
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			require.Equal(t, all[0].Ptr(), alloc(t, p, b, 4*kib).Ptr())
			require.Zero(t, statsOf(t, p).Waits)
			require.NoError(t, pool.Check(p))
			open()
			require.NoError(t, a.Sync())
			for _, x := range all[2:] {
				require.NoError(t, p.Free(a, x))
			}
			x, ok := p.Find(all[0].Ptr())
			require.True(t, ok)
			require.NoError(t, p.Free(b, x))
			closeAll(t, a, b, p)
			w.end()
		}
	}
}
