package pool_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// allowed reports whether an error may come of what other goroutines do.
func allowed(err error, kinds ...error) bool {
	for _, k := range kinds {
		if errors.Is(err, k) {
			return true
		}
	}
	return err == nil
}

// TestEverythingAtOnce: goroutines allocate, free, resize and find in streams that come and
// go, of two devices, while others trim, synchronise, grant and revoke, change policies, and
// try to close. Each block has contents of its own as long as it is allocated.
func TestEverythingAtOnce(t *testing.T) {
	w := newWorld(t, 2, 32*mib)
	p := w.pool(pool.Options{Max: 16 * mib, ReleaseThreshold: 4 * mib})
	require.NoError(t, p.Grant(vmm.AccessReadWrite, w.devs[1]))
	keep := w.stream(0)
	kept := alloc(t, p, keep, 1000) // so that no Close succeeds
	var workers, meddlers sync.WaitGroup
	var stop atomic.Bool
	for i := range 6 {
		workers.Go(func() { work(t, w, p, i) })
	}
	for _, f := range meddling(w, p, keep) {
		meddlers.Go(func() {
			for rnd := newRand(1); !stop.Load(); runtime.Gosched() { // the processors are for all
				if err := f(rnd); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	stop.Store(true)
	meddlers.Wait()
	require.NoError(t, pool.Check(p))
	require.Equal(t, 1, statsOf(t, p).Blocks)
	require.NoError(t, p.Free(keep, kept))
	require.NoError(t, keep.Sync())
	_, err := p.TrimTo(0)
	require.NoError(t, err)
	require.Zero(t, statsOf(t, p).Reserved)
	closeAll(t, keep, p)
	w.end()
}

// meddling is what goes on beside.
func meddling(w *world, p *pool.Pool, s *vmm.Stream) []func(rnd *rand.Rand) error {
	return []func(rnd *rand.Rand) error{
		func(rnd *rand.Rand) error {
			_, err := p.TrimTo(rnd.Uint64N(16 * mib))
			if allowed(err, vmm.ErrClosed) {
				return nil
			}
			return err
		},
		func(*rand.Rand) error { return errors.Join(s.Sync(), w.devs[0].Sync()) },
		func(rnd *rand.Rand) error {
			err := errors.Join(p.SetReuse(pool.Reuse(rnd.IntN(8))), p.SetReleaseThreshold(rnd.Uint64N(16*mib)))
			if allowed(err, vmm.ErrClosed) {
				return nil
			}
			return err
		},
		func(*rand.Rand) error {
			st, err := p.Stats()
			if err == nil && (st.Reserved > 16*mib || st.Used > st.Reserved || st.UsedPeak < st.Used || st.Blocks < 1 || uint64(st.Blocks) != st.Allocs-st.Frees) {
				err = fmt.Errorf("impossible statistics: %+v", st)
			}
			return err
		},
		func(*rand.Rand) error {
			if err := p.Close(); !errors.Is(err, vmm.ErrBusy) {
				return errors.Join(errors.New("it was closed"), err)
			}
			return nil
		},
		func(rnd *rand.Rand) error {
			err := p.Grant(vmm.Access(1+rnd.IntN(2)), w.devs[1])
			if rnd.IntN(4) == 0 {
				err = errors.Join(err, p.Revoke(w.devs[1]))
			}
			if allowed(err, vmm.ErrClosed) {
				return nil
			}
			return err
		},
		func(*rand.Rand) error {
			r, err := w.devs[0].Alloc(4 * mib)
			if err != nil {
				if allowed(err, vmm.ErrOutOfMemory) {
					return nil
				}
				return err
			}
			return r.Close()
		},
	}
}

// work is one goroutine's. While another tries to close the pool calls may return ErrClosed,
// and while access is revoked ErrInvalid.
func work(t *testing.T, w *world, p *pool.Pool, seed int) {
	rnd := newRand(uint64(seed))
	dev := seed % 2
	var live []pool.Block
	var s *vmm.Stream
	check := func(err error, kinds ...error) bool {
		if !allowed(err, append(kinds, vmm.ErrClosed, vmm.ErrOutOfMemory)...) && !(dev == 1 && errors.Is(err, vmm.ErrInvalid)) {
			t.Error(err)
		}
		return err == nil
	}
	release := func(b pool.Block) {
		if rnd.IntN(2) == 0 && p.Free(s, b) == nil {
			return
		}
		if err := p.FreeNow(b); err != nil { // no work uses it
			t.Error(err)
		}
	}
	for i := range testgate.Effort(2000, 40_000, 400_000) {
		if i%50 == 0 {
			if s != nil && !check(s.Close()) {
				return
			}
			var err error
			if s, err = w.devs[dev].NewStream(); !check(err) {
				return
			}
		}
		switch k := rnd.IntN(10); {
		case k < 5 || len(live) == 0:
			if b, err := p.Alloc(s, 1+rnd.Uint64N(1<<(6+rnd.IntN(14)))); check(err) {
				live = append(live, b)
				if err := w.devs[0].CopyIn(b.Ptr(), []byte{byte(seed)}); err != nil {
					t.Error(err)
				}
			}
		case k < 9:
			n := rnd.IntN(len(live))
			b := live[n]
			live[n] = live[len(live)-1]
			live = live[:len(live)-1]
			var got [1]byte
			if err := w.devs[0].CopyOut(got[:], b.Ptr()); err != nil || got[0] != byte(seed) {
				t.Error("block has changed", err, got)
			}
			// While the pool is closing nothing is found.
			if found, ok := p.Find(b.Ptr()); ok && found.Ptr() != b.Ptr() {
				t.Error("another block was found")
			}
			release(b)
		default:
			n := rnd.IntN(len(live))
			if b, err := p.Resize(s, live[n], 1+rnd.Uint64N(256*kib)); check(err, pool.ErrNoRoom) {
				live[n] = b
			}
		}
	}
	for _, b := range live {
		release(b)
	}
	check(s.Close())
}

// TestCloseBesideAlloc: of a Close and an Alloc that meet, either Close returns ErrBusy or
// Alloc ErrClosed.
func TestCloseBesideAlloc(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	s := w.stream(0)
	for i := range 300 {
		p := w.pool(pool.Options{})
		n := []uint64{100, 70 * kib, 5 * chunk}[i%3]
		if i%2 == 0 {
			require.NoError(t, p.Free(s, alloc(t, p, s, n)))
		}
		closed := make(chan error, 1)
		go func() { closed <- p.Close() }()
		b, err := p.Alloc(s, n)
		closing := <-closed
		if closing == nil {
			require.ErrorIs(t, err, vmm.ErrClosed, "a block of a closed pool")
			continue
		}
		require.ErrorIs(t, closing, vmm.ErrBusy)
		if err == nil {
			require.NoError(t, p.Free(s, b))
		}
		require.NoError(t, p.Close())
	}
	closeAll(t, s)
	w.end()
}

// TestManyGoroutinesOnOneStream share it, and its slabs.
func TestManyGoroutinesOnOneStream(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	var all sync.WaitGroup
	var mu sync.Mutex
	owner := map[vmm.Ptr]int{}
	for i := range 6 {
		all.Go(func() {
			rnd := newRand(uint64(i))
			for range 1000 {
				b, err := p.Alloc(s, 1+rnd.Uint64N(1<<(4+rnd.IntN(14))))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if who, taken := owner[b.Ptr()]; taken {
					t.Errorf("%v is %d's", b.Ptr(), who)
				}
				owner[b.Ptr()] = i
				mu.Unlock()
				mu.Lock()
				delete(owner, b.Ptr())
				mu.Unlock()
				if err := p.Free(s, b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, pool.Check(p))
	closeAll(t, s, p)
	w.end()
}

// TestStatsOfStreamsThatAreForgotten: counts stay exact while streams come and go.
func TestStatsOfStreamsThatAreForgotten(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	b := alloc(t, p, s, 100)
	var stop atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		var least uint64
		for !stop.Load() {
			st, err := p.Stats()
			switch {
			case err != nil:
				t.Error(err)
			case st.Allocs < least || st.Frees > st.Allocs || st.Blocks < 1 || st.Blocks > 2:
				t.Errorf("of %d before: %+v", least, st)
				return
			}
			least = st.Allocs
		}
	})
	for range 500 {
		on := w.stream(0)
		require.NoError(t, p.Free(on, alloc(t, p, on, 100)))
		require.NoError(t, on.Close())
	}
	stop.Store(true)
	all.Wait()
	require.EqualValues(t, 501, statsOf(t, p).Allocs)
	require.NoError(t, p.Free(s, b))
	closeAll(t, s, p)
	w.end()
}
