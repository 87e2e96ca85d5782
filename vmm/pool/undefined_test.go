package pool_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

var errStopped = errors.New("a member is gone")

// onStream is a device with a stream and a pool.
func onStream(t *testing.T) (*vmm.Device, *vmm.Stream, *pool.Pool) {
	t.Helper()
	d := vmmtest.Device(t)
	s, err := d.NewStream()
	require.NoError(t, err)
	p, err := pool.New(d, pool.Options{})
	require.NoError(t, err)
	return d, s, p
}

// TestFreedBlocksAreDefined: what was undefined in a block says nothing of the next one there.
func TestFreedBlocksAreDefined(t *testing.T) {
	_, s, p := onStream(t)
	for name, free := range map[string]func(pool.Block) error{
		"Free":    func(b pool.Block) error { return p.Free(s, b) },
		"FreeNow": p.FreeNow,
	} {
		for _, size := range []uint64{1000, 3 << 20} {
			b, err := p.Alloc(s, size)
			require.NoError(t, err)
			s.MarkUndefined(errStopped, 0, vmm.Span{Addr: b.Ptr(), Size: size})
			require.ErrorIs(t, s.Sync(), errStopped, name)
			require.NoError(t, free(b))
			require.NoError(t, s.Sync(), name)
		}
	}
	require.NoError(t, errors.Join(s.Close(), p.Close()))
}

// TestFreedInFlight: a block that was freed since work was queued, or the part that Resize gave up,
// is not undefined if the work is stopped; what is left of the block is.
func TestFreedInFlight(t *testing.T) {
	d, s, p := onStream(t)
	drops := d.NewDrops()
	defer drops.Close()
	for _, size := range []uint64{1000, 3 << 20} {
		neighbour, err := p.Alloc(s, size) // keeps the memory mapped
		require.NoError(t, err)
		for name, free := range map[string]func(pool.Block) error{
			"Free":    func(b pool.Block) error { return p.Free(s, b) },
			"FreeNow": p.FreeNow,
		} {
			b, err := p.Alloc(s, size)
			require.NoError(t, err)
			since := drops.Now()
			require.NoError(t, free(b))
			s.MarkUndefined(errStopped, since, vmm.Span{Addr: b.Ptr(), Size: size})
			require.NoError(t, s.Undefined(), name)
		}
		require.NoError(t, p.FreeNow(neighbour))
	}
	b, err := p.Alloc(s, 8<<20)
	require.NoError(t, err)
	all := vmm.Span{Addr: b.Ptr(), Size: b.Size()}
	since := drops.Now()
	b, err = p.Resize(s, b, 2<<20)
	require.NoError(t, err)
	s.MarkUndefined(errStopped, since, all)
	require.ErrorContains(t, s.Undefined(), "the 2097152 bytes")
	require.NoError(t, p.Free(s, b))
	require.NoError(t, errors.Join(s.Close(), p.Close()))
}

// TestMarksOfTheNextBlock: what is undefined in a block stays so whatever another goroutine does
// that had its memory before.
func TestMarksOfTheNextBlock(t *testing.T) {
	d, s, p := onStream(t)
	for _, size := range []uint64{1000, 3 << 20} {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for i := range 5000 {
					b, err := p.Alloc(s, size)
					if err != nil {
						t.Error(err)
						return
					}
					s.MarkUndefined(errStopped, 0, vmm.Span{Addr: b.Ptr(), Size: 1})
					if err := d.CopyOut(make([]byte, 1), b.Ptr()); !errors.Is(err, errStopped) {
						t.Errorf("round %d: %v", i, err)
						return
					}
					if err := p.Free(s, b); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	}
	require.NoError(t, errors.Join(s.Sync(), s.Close(), p.Close()))
}
