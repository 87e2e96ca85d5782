package kernel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// With NO_BARRIER the blocks do not wait for each other.
const totalCUDA = `
typedef unsigned long long u64;

// grid_barrier returns when all blocks of the grid have called it. *arrived is 0 before the
// launch. A barrier that is never full ends in a fault, after some seconds.
__device__ void grid_barrier(unsigned *arrived)
{
	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence(); // what this block has written comes before its arrival
		atomicAdd(arrived, 1u);
		long long start = clock64();
		while (*(volatile unsigned *)arrived < gridDim.x) {
			if (clock64() - start > 20000000000ll)
				__trap();
		}
		__threadfence(); // what this block reads comes after all arrivals
	}
	__syncthreads();
}

// total stores for each block the sum of x as the block saw it. Blocks write their parts at
// different times, up to delay cycles after the sum is there.
extern "C" __global__ void total(const unsigned *x, u64 n, u64 *parts, u64 *totals, unsigned *arrived, long long delay)
{
	__shared__ u64 sum;
	if (threadIdx.x == 0)
		sum = 0;
	__syncthreads();
	u64 mine = 0;
	for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x)
		mine += x[i];
	atomicAdd(&sum, mine);
	__syncthreads();
	if (threadIdx.x == 0) {
		long long wait = delay * (long long)(blockIdx.x * 7919u % gridDim.x) / (long long)gridDim.x;
		long long start = clock64();
		while (clock64() - start < wait)
			;
		parts[blockIdx.x] = sum;
		sum = 0;
	}
#ifdef NO_BARRIER
	__syncthreads();
#else
	grid_barrier(arrived);
#endif
	mine = 0;
	for (unsigned b = threadIdx.x; b < gridDim.x; b += blockDim.x)
		mine += parts[b];
	atomicAdd(&sum, mine);
	__syncthreads();
	if (threadIdx.x == 0)
		totals[blockIdx.x] = sum;
}
`

// total is the kernel in Go. Without the barrier each block reads the parts when it has written
// its own.
func total(barrier bool) any {
	return func(l kernel.Threads, x []uint32, partsAt, totalsAt vmm.Ptr, arrived *uint32, _ int64) {
		blocks := int(l.Grid.X)
		parts, totals := kernel.Slice[uint64](partsAt, uint64(blocks)), kernel.Slice[uint64](totalsAt, uint64(blocks))
		read := func(b int) {
			totals[b] = 0
			for _, part := range parts {
				totals[b] += part
			}
		}
		for b := range blocks {
			parts[b] = 0
			for i := b; i < len(x); i += blocks {
				parts[b] += uint64(x[i])
			}
			*arrived++
			if !barrier {
				read(b)
			}
		}
		for b := range blocks {
			if barrier {
				read(b)
			}
		}
	}
}

// TestGridBarrier: all blocks of a cooperative launch pass a barrier together. Each block adds up
// what all have written before it. Without the barrier some block misses a part.
func TestGridBarrier(t *testing.T) {
	const (
		n      = 1<<20 + 3
		delay  = int64(20_000_000) // about 10 ms
		rounds = 2                 // launches in a row, each with a counter of its own
	)
	dev := open(t)
	s := stream(t, dev)
	var x [rounds]*growable.Vector[uint32]
	var want [rounds]uint64
	for r := range rounds {
		values := make([]uint32, n)
		for i := range values {
			values[i] = uint32(1 + i%1000 + r) // no part is 0, nor what it was in the round before
			want[r] += uint64(values[i])
		}
		x[r] = vector(t, dev, values...)
	}
	for _, barrier := range []bool{true, false} {
		code := kernel.Code{CUDA: totalCUDA, Host: kernel.Host{"total": total(barrier)}}
		if !barrier {
			code.CUDA = "#define NO_BARRIER\n" + code.CUDA
		}
		m, err := kernel.Load(dev, code)
		ends(t, m, err)
		f := function(t, m, "total")
		threads, blocks, err := f.SuggestBlock(0)
		require.NoError(t, err)
		c := kernel.Config{Grid: vmm.Dim{X: blocks}, Block: vmm.Dim{X: threads}, Cooperative: true}
		parts, arrived := vector(t, dev, make([]uint64, blocks)...), vector(t, dev, make([]uint32, rounds)...)
		var totals [rounds]*growable.Vector[uint64]
		for r := range rounds {
			totals[r] = vector(t, dev, make([]uint64, blocks)...)
		}
		launch := func(r int) error {
			return f.Launch(s, c, kernel.Read(x[r]), kernel.Pointer(parts), kernel.Pointer(totals[r]), arrived.Ptr()+vmm.Ptr(4*r), delay)
		}
		for r := range rounds {
			require.NoError(t, launch(r))
		}
		require.NoError(t, s.Sync())
		for r := range rounds {
			wrong := 0
			for _, sum := range contents(t, totals[r]) {
				if sum != want[r] {
					wrong++
				}
			}
			t.Logf("barrier %v, launch %d: %d of %d blocks of %d threads saw another sum", barrier, r+1, wrong, blocks, threads)
			if barrier {
				require.Zero(t, wrong)
			} else {
				require.Positive(t, wrong, "the barrier is not what makes the sums right")
			}
		}
		if barrier {
			require.Equal(t, []uint32{blocks, blocks}, contents(t, arrived))
		}
		c.Grid.X++
		require.ErrorIs(t, launch(0), vmm.ErrInvalid, "one block more than can run at once")
	}
}
