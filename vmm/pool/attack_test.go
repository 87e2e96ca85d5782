package pool_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// to ask how far the stream is.
func TestFencesOfLongBlocksAreBounded(t *testing.T) {
	w := newWorld(t, 1, 64<<20)
	p := w.pool(pool.Options{ChunkSize: chunk, ReleaseThreshold: 1 << 40})
	s, other := w.stream(0), w.stream(0)
	kept := alloc(t, p, other, 2*chunk)
	for range 1000 {
		b := alloc(t, p, s, 2*chunk)
		require.NoError(t, s.Fill(b.Ptr(), 1, 4, 1))
		require.NoError(t, p.Free(s, b))
		require.NoError(t, s.Sync())
	}
	require.Less(t, w.drv.Counts()["NewEvent"].Made, 100)
	require.NoError(t, p.Free(other, kept))
	closeAll(t, p, s, other)
	w.end()
}

// A Close that is refused must not make other calls fail meanwhile.
func TestRefusedCloseDisturbsNoCall(t *testing.T) {
	w := newWorld(t, 1, 64<<20)
	p := w.pool(pool.Options{ChunkSize: chunk})
	s := w.stream(0)
	kept := alloc(t, p, s, 256)
	var closers sync.WaitGroup
	stop := make(chan struct{})
	closers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := p.Close(); err == nil {
					t.Error("the pool is closed while a block is allocated")
					return
				}
			}
		}
	})
	var failed error
	for i := 0; i < 200000 && failed == nil; i++ {
		n := uint64(100)
		if i%2 == 0 {
			n = 2 * chunk
		}
		var b pool.Block
		if b, failed = p.Alloc(s, n); failed == nil {
			if _, ok := p.Find(b.Ptr()); !ok {
				t.Error("a block is not found")
				break
			}
			failed = p.Free(s, b)
		}
	}
	close(stop)
	closers.Wait()
	require.NoError(t, failed)
	require.NoError(t, p.FreeNow(kept))
	closeAll(t, p, s)
	w.end()
}

// EnablePeers gives streams access that were refused before.
func TestEnablePeersAfterARefusal(t *testing.T) {
	w := newWorld(t, 2, 64<<20)
	p := w.pool(pool.Options{ChunkSize: chunk})
	s := w.stream(1)
	_, err := p.Alloc(s, 256)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, vmm.EnablePeers(vmm.AccessReadWrite, w.devs, p))
	b, err := p.Alloc(s, 256)
	require.NoError(t, err)
	require.NoError(t, p.Free(s, b))

	require.NoError(t, p.Revoke(w.devs[1]))
	_, err = p.Alloc(s, 256)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	closeAll(t, p, s)
	w.end()
}

// Every size up to Max fits into an empty pool, also where a slab of eight does not.
func TestSmallPoolTakesEverySize(t *testing.T) {
	w := newWorld(t, 1, 64<<20)
	s := w.stream(0)
	for _, most := range []uint64{chunk, 2 * chunk} {
		for n := uint64(256); n <= most; n += 1792 {
			p := w.pool(pool.Options{ChunkSize: chunk, Max: most})
			b := alloc(t, p, s, n)
			require.NoError(t, s.Fill(b.Ptr(), 1, 1, n))
			require.NoError(t, p.Free(s, b))
			closeAll(t, p)
		}
	}
	closeAll(t, s)
	w.end()
}

// A run that is long enough is found behind any number of shorter ones of nearly its size.
func TestRunBehindManyShorterOnes(t *testing.T) {
	const page = 16 << 10
	w := newWorld(t, 1, 64<<20)
	p := w.pool(pool.Options{ChunkSize: 1 << 20, Max: 16 << 20})
	s := w.stream(0)
	var blocks []pool.Block
	for i := 0; ; i++ { // 17 pages, then always 16, with a block of 5 pages between them
		n := uint64(16 * page)
		switch {
		case i == 0:
			n = 17 * page
		case i%2 == 1:
			n = 5 * page
		}
		b, err := p.Alloc(s, n)
		if err != nil {
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			break
		}
		blocks = append(blocks, b)
	}
	require.Greater(t, len(blocks), 80)
	for i := 0; i < len(blocks); i += 2 {
		require.NoError(t, p.Free(s, blocks[i]))
	}
	b, err := p.Alloc(s, 17*page)
	require.NoError(t, err)
	require.NoError(t, p.Free(s, b))
	for i := 1; i < len(blocks); i += 2 {
		require.NoError(t, p.Free(s, blocks[i]))
	}
	closeAll(t, p, s)
	w.end()
}

// Addresses where the driver would not map memory for a while are used again.
func TestAllocAfterMapFailedEverywhere(t *testing.T) {
	w := newWorld(t, 1, 16<<20)
	p := w.pool(pool.Options{ChunkSize: chunk})
	s := w.stream(0)
	w.watch(func(c drivertest.Call) error {
		if c.Name == "Map" {
			return driver.ErrLimit
		}
		return nil
	})
	for range 64 {
		_, err := p.Alloc(s, 4<<20)
		require.Error(t, err)
	}
	w.watch(nil)
	b, err := p.Alloc(s, 4<<20)
	require.NoError(t, err)
	require.NoError(t, p.Free(s, b))
	closeAll(t, p, s)
	w.end()
}

// OnOOM is told what was asked for.
func TestOnOOMIsToldTheSize(t *testing.T) {
	w := newWorld(t, 1, 16<<20)
	var told []uint64
	p := w.pool(pool.Options{ChunkSize: chunk, Max: 4 * chunk, OnOOM: func(_ *vmm.Stream, n uint64) bool {
		told = append(told, n)
		return false
	}})
	s := w.stream(0)
	all := alloc(t, p, s, 4*chunk)
	for _, n := range []uint64{1000, chunk - 1} {
		_, err := p.Alloc(s, n)
		require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	}
	require.Equal(t, []uint64{1000, chunk - 1}, told)
	require.NoError(t, p.Free(s, all))
	closeAll(t, p, s)
	w.end()
}
