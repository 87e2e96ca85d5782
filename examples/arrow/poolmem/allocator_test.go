package poolmem

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

const device = "host?page=4K"

// open makes an Allocator that the test must leave empty.
func open(t *testing.T, o pool.Options) *Allocator {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
	a, err := Open(device, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

// numbered fills b with bytes that are not zero.
func numbered(b []byte) []byte {
	for i := range b {
		b[i] = byte(i%255 + 1)
	}
	return b
}

// Buffers are zero, also where another one was before, aligned, and no longer than asked for.
func TestAllocate(t *testing.T) {
	a := open(t, pool.Options{})
	for range 3 {
		var all [][]byte
		for _, n := range []int{1, 33, 64, 65, 4097, 100_000, 5 << 20} {
			b := a.Allocate(n)
			require.Len(t, b, n)
			require.Equal(t, n, cap(b))
			require.Zero(t, addressOf(b)%alignment)
			require.Equal(t, make([]byte, n), b)
			all = append(all, numbered(b))
		}
		for _, b := range all {
			a.Free(b)
		}
	}
	stats, err := a.Stats()
	require.NoError(t, err)
	require.Zero(t, stats.Blocks)
}

func TestEmpty(t *testing.T) {
	a := open(t, pool.Options{})
	b := a.Allocate(0)
	require.NotNil(t, b)
	require.Empty(t, b)
	a.Free(b)
	a.Free(nil)
	b = numbered(a.Reallocate(10, b))
	b = a.Reallocate(0, b)
	require.Empty(t, b)
	a.Free(b)
}

// A buffer keeps its first bytes, whether it grows where it is or elsewhere, and shows zeros
// behind them.
func TestReallocate(t *testing.T) {
	a := open(t, pool.Options{})
	for _, from := range []int{1, 64, 100, 4096, 70_000, 1 << 20} {
		for _, to := range []int{1, 63, 64, 101, 5000, 200_000, 3 << 20} {
			t.Run(fmt.Sprint(from, " to ", to), func(t *testing.T) {
				b := numbered(a.Allocate(from))
				want := make([]byte, to)
				copy(want, b)
				b = a.Reallocate(to, b)
				require.Equal(t, want, b)
				require.Equal(t, to, cap(b))
				a.Free(b)
			})
		}
	}
}

// What lies behind a large buffer is free, so it grows where it is.
func TestReallocateInPlace(t *testing.T) {
	a := open(t, pool.Options{})
	b := a.Allocate(1 << 20)
	at := addressOf(b)
	for n := 1 << 20; n <= 16<<20; n += 1 << 20 {
		b = a.Reallocate(n, b)
		require.Equal(t, at, addressOf(b))
	}
	a.Free(b)
}

// Memory that is not the Allocator's is left alone, and copied where it has to grow.
func TestForeignMemory(t *testing.T) {
	a := open(t, pool.Options{})
	heap := []byte("of Go's heap")
	a.Free(heap)
	b := a.Reallocate(len(heap)+3, heap)
	require.Equal(t, "of Go's heap\x00\x00\x00", string(b))
	a.Free(b[4:]) // the middle of a buffer is not the buffer
	stats, err := a.Stats()
	require.NoError(t, err)
	require.Equal(t, 1, stats.Blocks)
	a.Free(b[:0])
}

func TestNoMemory(t *testing.T) {
	a := open(t, pool.Options{Max: 8 << 20, ChunkSize: 1 << 20})
	defer func() {
		err, _ := recover().(error)
		require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	}()
	a.Allocate(9 << 20)
}

func TestCloseBusy(t *testing.T) {
	a := open(t, pool.Options{})
	b := a.Allocate(1)
	require.ErrorIs(t, a.Close(), vmm.ErrBusy)
	a.Free(b)
}

func TestOpenFails(t *testing.T) {
	_, err := Open("nothing", pool.Options{})
	require.Error(t, err)
	_, err = Open(device, pool.Options{Align: 65})
	require.Error(t, err)
}

// Goroutines share the Allocator, and none sees another one's bytes.
func TestConcurrently(t *testing.T) {
	a := open(t, pool.Options{})
	var wg sync.WaitGroup
	failed := make(chan error, 8)
	for g := range byte(8) {
		wg.Go(func() {
			for i := range 500 {
				b := a.Allocate(1 + i*37%3000)
				for j := range b {
					b[j] += g
				}
				b = a.Reallocate(len(b)+100, b)
				for _, v := range b[:len(b)-100] {
					if v != g {
						failed <- errors.New("bytes of another goroutine")
						return
					}
				}
				a.Free(b)
			}
		})
	}
	wg.Wait()
	require.Empty(t, failed)
}
