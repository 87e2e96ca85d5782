package kernel_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nvrtc"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// The kernels of these tests. All atomic additions are counted, those of the header too.
const incrementsCUDA = `
__device__ unsigned long long made;

template <class T> __device__ T counted_add(T *p, T n)
{
	atomicAdd(&made, 1ull);
	return atomicAdd(p, n);
}
#define atomicAdd counted_add
#include "cuvmm_append.cuh"

// additions stores how many additions were made since it ran last.
extern "C" __global__ void additions(unsigned long long *to)
{
	*to = made;
	made = 0;
}

// positive copies the positive elements of src to dst, in any order.
extern "C" __global__ void positive(int *dst, int *count, const int *src, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n)
		return;
	int value = src[i];
	if (value > 0)
		dst[atomicAggInc(count)] = value;
}

// places stores for each thread which place it got.
extern "C" __global__ void places(int *at, int *count, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		at[i] = atomicAggInc(count);
}

extern "C" __global__ void places_by_lane(int *at, int *count, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		at[i] = atomicAdd(count, 1);
}

// spread makes i % 4 calls in thread i, so the lanes of a warp diverge, and neighbours pass
// different counters.
template <class T> __global__ void spread(T *at, T *counts, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n)
		return;
	for (int k = 0; k < i % 4; k++)
		at[4 * i + k] = atomicAggInc(&counts[(i + k) % 3]);
}
`

func positive(dst vmm.Ptr, count *int32, src vmm.Ptr, n int32) {
	to := kernel.Slice[int32](dst, uint64(n))
	for _, value := range kernel.Slice[int32](src, uint64(n)) {
		if value > 0 {
			to[*count] = value
			*count++
		}
	}
}

func places(at vmm.Ptr, count *int32, n int32) {
	to := kernel.Slice[int32](at, uint64(n))
	for i := range to {
		to[i] = *count
		*count++
	}
}

func spread[T int32 | uint32 | uint64](at, counts vmm.Ptr, n int32) {
	to, counters := kernel.Slice[T](at, 4*uint64(n)), kernel.Slice[T](counts, 3)
	for i := range int(n) {
		for k := range i % 4 {
			c := &counters[(i+k)%3]
			to[4*i+k] = *c
			*c++
		}
	}
}

func increments(t *testing.T, dev *vmm.Device) *kernel.Module {
	t.Helper()
	m, err := kernel.Load(dev, kernel.Code{
		CUDA:    incrementsCUDA,
		Compile: nvrtc.Options{Expressions: []string{"spread<int>", "spread<unsigned>", "spread<unsigned long long>"}},
		Host: kernel.Host{
			"positive": positive, "places": places, "places_by_lane": places,
			"spread<int>": spread[int32], "spread<unsigned>": spread[uint32], "spread<unsigned long long>": spread[uint64],
		},
	})
	return ends(t, m, err)
}

// additions is how many atomic additions the kernels have made since it was called last.
func additions(t *testing.T, m *kernel.Module, s *vmm.Stream) uint64 {
	t.Helper()
	to := vector[uint64](t, m.Device(), 0)
	require.NoError(t, function(t, m, "additions").Launch(s, kernel.Config{}, kernel.Pointer(to)))
	require.NoError(t, s.Sync())
	return contents(t, to)[0]
}

// TestAtomicAggIncFilters: a kernel that takes its places from an int counter keeps what has to
// be kept, with one addition for a warp at most.
func TestAtomicAggIncFilters(t *testing.T) {
	dev := open(t)
	m, s := increments(t, dev), stream(t, dev)
	const n = 1<<20 + 7 // the last warp is not whole
	values := make([]int32, n)
	rnd := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same numbers each time
	var want []int32
	warps := map[int]bool{} // those that keep something
	for i := range values {
		values[i] = rnd.Int32N(2000) - 1000
		if values[i] > 0 {
			want = append(want, values[i])
			warps[i/32] = true
		}
	}
	src, dst, count := vector(t, dev, values...), vector(t, dev, make([]int32, n)...), vector[int32](t, dev, 0)
	require.NoError(t, function(t, m, "positive").Launch(s, kernel.Over(n, 256),
		kernel.Pointer(dst), kernel.Pointer(count), kernel.Read(kernel.Pointer(src)), int32(n)))
	require.NoError(t, s.Sync())
	require.Equal(t, []int32{int32(len(want))}, contents(t, count))
	got := contents(t, dst)
	require.Equal(t, sorted(want), sorted(got[:len(want)]))
	require.Equal(t, make([]int32, n-len(want)), got[len(want):], "nothing is written beyond the count")
	if onCUDA {
		made := additions(t, m, s)
		t.Logf("%d additions for %d elements", made, len(want))
		require.Positive(t, made)
		require.LessOrEqual(t, made, uint64(len(warps)))
	}
}

// TestAtomicAggIncPlaces: each of 10,000,000 threads gets a place of its own among as many. On a
// GPU it takes 32 times fewer additions than one for each thread, since all lanes take part.
func TestAtomicAggIncPlaces(t *testing.T) {
	dev := open(t)
	m, s := increments(t, dev), stream(t, dev)
	n := testgate.Effort(1_000_000, 10_000_000, 10_000_000) // whole warps
	for name, lanes := range map[string]uint64{"places": 32, "places_by_lane": 1} {
		at, count := vector(t, dev, slices.Repeat([]int32{-1}, n)...), vector[int32](t, dev, 0)
		require.NoError(t, function(t, m, name).Launch(s, kernel.Over(uint64(n), 256), kernel.Pointer(at), kernel.Pointer(count), int32(n)))
		require.NoError(t, s.Sync())
		require.Equal(t, []int32{int32(n)}, contents(t, count), name)
		taken := make([]bool, n)
		for i, index := range contents(t, at) {
			if index < 0 || int(index) >= n || taken[index] {
				t.Fatalf("%s: thread %d got %d, which is beyond the count or another's too", name, i, index)
			}
			taken[index] = true
		}
		if onCUDA {
			require.Equal(t, uint64(n)/lanes, additions(t, m, s), name)
		}
	}
}

// TestAtomicAggIncSpread: lanes that diverge and pass different counters, which may be negative.
func TestAtomicAggIncSpread(t *testing.T) {
	dev := open(t)
	m := increments(t, dev)
	testSpread[int32](t, m, "spread<int>")
	testSpread[uint32](t, m, "spread<unsigned>")
	testSpread[uint64](t, m, "spread<unsigned long long>")
}

func testSpread[T int32 | uint32 | uint64](t *testing.T, m *kernel.Module, name string) {
	t.Helper()
	const n = 100_003
	dev := m.Device()
	s := stream(t, dev)
	start := ^T(999) // -1000: the counters pass 0
	at, counts := vector(t, dev, make([]T, 4*n)...), vector(t, dev, start, start, start)
	require.NoError(t, function(t, m, name).Launch(s, kernel.Over(n, 256), kernel.Pointer(at), kernel.Pointer(counts), int32(n)))
	require.NoError(t, s.Sync())
	got := contents(t, at)
	var calls [3]T
	taken := [3]map[T]bool{{}, {}, {}}
	for i := range n {
		for k := range i % 4 {
			c := (i + k) % 3
			calls[c]++
			taken[c][got[4*i+k]-start] = true
		}
	}
	for c, value := range contents(t, counts) {
		require.Equal(t, calls[c], value-start, "%s: calls for counter %d", name, c)
		require.Len(t, taken[c], int(calls[c]), "%s: places of counter %d", name, c)
		for index := range taken[c] {
			if index >= calls[c] {
				require.Less(t, index, calls[c], name)
			}
		}
	}
}
