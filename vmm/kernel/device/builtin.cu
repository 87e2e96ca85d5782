// The kernels that package vmm/kernel brings along. tools/kernels compiles this file to
// builtin.ptx, and hostbuiltin.go has the same operations for host memory: parameters
// have the same order and the same meaning there.
//
// All kernels but compact may run with any grid of blocks of THREADS x 1 x 1; more blocks
// than there are tiles have nothing to do. Pointers are aligned to the element at least.
// What one kernel is given does not overlap.

#include "cuvmm_append.cuh"

typedef unsigned long long u64;
typedef long long i64;
typedef unsigned u32;
typedef int i32;
typedef float f32;
typedef double f64;

namespace {

constexpr unsigned THREADS = 256;
constexpr unsigned LOADS = 4; // loads of 16 bytes that each thread has under way

// pack is 16 bytes as elements.
template <class T> union pack {
	static constexpr unsigned N = 16 / sizeof(T);
	uint4 raw;
	T t[N];
	__device__ pack() {}
};

// What is read once need not stay in the cache.
template <class T> __device__ __forceinline__ pack<T> load16(const T *p)
{
	pack<T> v;
	v.raw = __ldcs(reinterpret_cast<const uint4 *>(p));
	return v;
}

template <class T> __device__ __forceinline__ void store16(T *p, const pack<T> &v)
{
	*reinterpret_cast<uint4 *>(p) = v.raw;
}

__device__ __forceinline__ u64 smaller(u64 a, u64 b) { return a < b ? a : b; }

// head is how many of n elements lie before the first that is aligned to 16 bytes.
template <class T> __device__ __forceinline__ u64 head(const T *p, u64 n)
{
	return smaller((16 - (u64)p % 16) % 16 / sizeof(T), n);
}

// parts calls f.one(i) for the elements of p[0:n] that lie before and after what is
// aligned to 16 bytes, and f.many(i) with the first of LOADS packs, THREADS packs apart,
// for what lies between. Each element is one thread's, and the order in which a thread
// comes to its own depends on the grid, n and the alignment of p alone.
template <class T, class F> __device__ __forceinline__ void parts(const T *p, u64 n, F &f)
{
	const u64 N = 16 / sizeof(T), tile = THREADS * LOADS * N;
	u64 before = head(p, n);
	u64 tiles = (n - before) / tile;
	for (u64 b = blockIdx.x; b < tiles; b += gridDim.x)
		f.many(before + b * tile + threadIdx.x * N);

	// What is less than a tile is the last block's, which has the fewest tiles.
	if (blockIdx.x == gridDim.x - 1) {
		for (u64 i = threadIdx.x; i < before; i += THREADS)
			f.one(i);
		for (u64 i = before + tiles * tile + threadIdx.x; i < n; i += THREADS)
			f.one(i);
	}
}

// The pattern is that of package kernel's Pattern: each word of 8 bytes is splitmix64 of
// the seed and the word's index, so no two are the same.
constexpr u64 GOLDEN = 0x9e3779b97f4a7c15;

__device__ __forceinline__ u64 mix(u64 x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

__device__ __forceinline__ u64 word(u64 seed, u64 i) { return mix(seed + (i + 1) * GOLDEN); }

struct filler {
	u64 *p, seed;

	__device__ void one(u64 i) { p[i] = word(seed, i); }
	__device__ void many(u64 i)
	{
		u64 x = seed + (i + 1) * GOLDEN;
#pragma unroll
		for (unsigned k = 0; k < LOADS; k++) {
			pack<u64> v;
			v.t[0] = mix(x + k * THREADS * 2 * GOLDEN);
			v.t[1] = mix(x + (k * THREADS * 2 + 1) * GOLDEN);
			store16(p + i + k * THREADS * 2, v);
		}
	}
};

struct verifier {
	const u64 *p;
	u64 seed, first, bad;

	// note counts the bytes of word i that differ, which are not 0 in x.
	__device__ void note(u64 i, u64 x)
	{
		if (x == 0)
			return;
		first = smaller(first, i * 8 + (__ffsll(x) - 1) / 8);
		x |= x >> 4;
		x |= x >> 2;
		x |= x >> 1;
		bad += __popcll(x & 0x0101010101010101);
	}
	__device__ void one(u64 i) { note(i, p[i] ^ word(seed, i)); }
	__device__ void many(u64 i)
	{
		pack<u64> v[LOADS];
#pragma unroll
		for (unsigned k = 0; k < LOADS; k++)
			v[k] = load16(p + i + k * THREADS * 2);
		u64 x = seed + (i + 1) * GOLDEN, differ = 0;
#pragma unroll
		for (unsigned k = 0; k < LOADS; k++) {
			differ |= v[k].t[0] ^ mix(x + k * THREADS * 2 * GOLDEN);
			differ |= v[k].t[1] ^ mix(x + (k * THREADS * 2 + 1) * GOLDEN);
		}
		if (differ == 0)
			return;
		for (unsigned k = 0; k < LOADS; k++) { // reads again: the words that differ are few
			one(i + k * THREADS * 2);
			one(i + k * THREADS * 2 + 1);
		}
	}
};

template <class T> struct counter { // iota of integers wraps around
	T *p, start, step;

	__device__ T at(u64 i) { return start + (T)i * step; }
	__device__ void one(u64 i) { p[i] = at(i); }
	__device__ void many(u64 i)
	{
#pragma unroll
		for (unsigned k = 0; k < LOADS; k++) {
			u64 first = i + k * THREADS * pack<T>::N;
			pack<T> v;
#pragma unroll
			for (unsigned j = 0; j < pack<T>::N; j++)
				v.t[j] = at(first + j);
			store16(p + first, v);
		}
	}
};

// Floats are start + i * step with one rounding in double precision, and with one more
// for f32.
template <> __device__ __forceinline__ f32 counter<f32>::at(u64 i)
{
	return (f32)__fma_rn((f64)i, (f64)step, (f64)start);
}
template <> __device__ __forceinline__ f64 counter<f64>::at(u64 i) { return __fma_rn((f64)i, step, start); }

// Reductions. A thread has an accumulator for each element of a pack. They are combined
// in an order that the grid, n and the alignment of p determine: the result for floats
// is the same again on the same memory with the same grid.
template <class A> struct adding {
	typedef A acc;
	static __device__ __forceinline__ A join(A a, A b) { return a + b; }
};
// A NaN stays: no comparison with it is true.
template <class T> struct lesser {
	typedef T acc;
	static __device__ __forceinline__ T join(T a, T b) { return b < a || b != b ? b : a; }
};
template <class T> struct greater {
	typedef T acc;
	static __device__ __forceinline__ T join(T a, T b) { return b > a || b != b ? b : a; }
};

template <class T, class Op> struct reducer {
	typedef typename Op::acc acc;
	const T *p;
	acc a[pack<T>::N];

	__device__ void one(u64 i) { a[0] = Op::join(a[0], (acc)p[i]); }
	__device__ void many(u64 i)
	{
		pack<T> v[LOADS];
#pragma unroll
		for (unsigned k = 0; k < LOADS; k++)
			v[k] = load16(p + i + k * THREADS * pack<T>::N);
#pragma unroll
		for (unsigned k = 0; k < LOADS; k++) {
#pragma unroll
			for (unsigned j = 0; j < pack<T>::N; j++)
				a[j] = Op::join(a[j], (acc)v[k].t[j]);
		}
	}
};

// reduce_block returns what all threads of a block have, to its thread 0.
template <class Op> __device__ __forceinline__ typename Op::acc reduce_block(typename Op::acc a)
{
	typedef typename Op::acc acc;
	__shared__ acc warps[THREADS / 32];
#pragma unroll
	for (int d = 16; d > 0; d /= 2)
		a = Op::join(a, __shfl_down_sync(0xffffffffu, a, d));
	__syncthreads(); // of an earlier call nothing is read any more
	if (threadIdx.x % 32 == 0)
		warps[threadIdx.x / 32] = a;
	__syncthreads();
	if (threadIdx.x == 0) {
		for (unsigned w = 1; w < THREADS / 32; w++)
			a = Op::join(a, warps[w]);
	}
	return a;
}

// reduce needs a place of 8 bytes in partials for each block, and a ticket that is 0 and
// is 0 again afterwards. start is what changes no result: 0 for a sum, else any element.
template <class T, class Op>
__device__ __forceinline__ void reduce(const T *p, u64 n, void *partials, u32 *ticket, void *result,
	typename Op::acc start)
{
	typedef typename Op::acc acc;
	reducer<T, Op> r;
	r.p = p;
	for (unsigned j = 0; j < pack<T>::N; j++)
		r.a[j] = start;
	parts(p, n, r);
	acc a = r.a[0];
	for (unsigned j = 1; j < pack<T>::N; j++)
		a = Op::join(a, r.a[j]);
	a = reduce_block<Op>(a);

	// The block that takes the last ticket sees what the others wrote before they took theirs.
	__shared__ bool last;
	volatile acc *all = (volatile acc *)partials;
	if (threadIdx.x == 0) {
		all[blockIdx.x] = a;
		__threadfence();
		last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
		__threadfence();
	}
	__syncthreads();
	if (!last)
		return;
	a = start;
	for (unsigned b = threadIdx.x; b < gridDim.x; b += THREADS)
		a = Op::join(a, all[b]);
	a = reduce_block<Op>(a);
	if (threadIdx.x == 0)
		*(acc *)result = a;
}

// load_tile reads the tile of THREADS * PER elements that begins at first. It sets a bit
// of valid for each that is there. at is the index of values[i] in the tile.
template <class T, unsigned PER> struct tile {
	static constexpr unsigned N = pack<T>::N, SIZE = THREADS * PER;
	static_assert(PER % N == 0, "whole packs");
	T values[PER];
	unsigned valid;
	bool packed;

	__device__ __forceinline__ void load(const T *src, u64 n, u64 first)
	{
		src += first;
		packed = n - first >= SIZE && (u64)src % 16 == 0;
		valid = ~0u >> (32 - PER);
		if (packed) {
			pack<T> v[PER / N];
#pragma unroll
			for (unsigned k = 0; k < PER / N; k++)
				v[k] = load16(src + (k * THREADS + threadIdx.x) * N);
#pragma unroll
			for (unsigned i = 0; i < PER; i++)
				values[i] = v[i / N].t[i % N];
		} else if (n - first >= SIZE) {
#pragma unroll
			for (unsigned i = 0; i < PER; i++)
				values[i] = src[i * THREADS + threadIdx.x];
		} else {
			unsigned rest = n - first;
			valid = 0;
#pragma unroll
			for (unsigned i = 0; i < PER; i++) {
				if (i * THREADS + threadIdx.x < rest) {
					values[i] = src[i * THREADS + threadIdx.x];
					valid |= 1u << i;
				} else {
					values[i] = T();
				}
			}
		}
	}
	__device__ __forceinline__ unsigned at(unsigned i) const
	{
		return packed ? ((i / N) * THREADS + threadIdx.x) * N + i % N : i * THREADS + threadIdx.x;
	}
};

// A block does the tiles of compact one by one: item b, b + gridDim.x and so on. A grid of
// a block for each item is the fastest.
template <class T, unsigned PER, class Keep>
__device__ __forceinline__ void compact(cuvmm::cursor *c, const T *src, u64 n, Keep keep)
{
	typedef cuvmm::tile_appender<T, THREADS, PER> appender;
	__shared__ typename appender::shared s;
	const u64 SIZE = tile<T, PER>::SIZE;
	u64 items = cuvmm::item_count(c, (n + SIZE - 1) / SIZE);
	for (u64 b = blockIdx.x; b < items; b += gridDim.x) {
		u64 item = cuvmm::item(c, b);
		tile<T, PER> t;
		t.load(src, n, item * SIZE);
		unsigned kept = keep(t, item * SIZE);
		if (!appender::append(c, s, t.values, kept) && threadIdx.x == 0)
			cuvmm::note_unfinished(c, item);
	}
}

template <class T> struct compare {
	T value;
	u32 keep; // 1: less, 2: equal, 4: greater, 8: unordered

	template <unsigned PER> __device__ __forceinline__ unsigned operator()(const tile<T, PER> &t, u64) const
	{
		bool less = keep & 1, equal = keep & 2, above = keep & 4, unordered = keep & 8;
		unsigned kept = 0;
#pragma unroll
		for (unsigned i = 0; i < PER; i++) {
			T v = t.values[i];
			bool k = v < value ? less : v == value ? equal : v > value ? above : unordered;
			kept |= (unsigned)k << i;
		}
		return kept & t.valid;
	}
};

// bytes2 and bytes4 are masks of as many elements as a pack has.
template <unsigned N> struct bytes;
template <> struct bytes<2> { typedef unsigned short type; };
template <> struct bytes<4> { typedef u32 type; };

template <class T> struct masked {
	const unsigned char *mask;

	template <unsigned PER> __device__ __forceinline__ unsigned operator()(const tile<T, PER> &t, u64 first) const
	{
		const unsigned N = pack<T>::N;
		const unsigned char *m = mask + first;
		unsigned kept = 0;
		if (t.packed && (u64)m % N == 0) {
#pragma unroll
			for (unsigned k = 0; k < PER / N; k++) {
				u32 four = *reinterpret_cast<const typename bytes<N>::type *>(m + (k * THREADS + threadIdx.x) * N);
#pragma unroll
				for (unsigned j = 0; j < N; j++)
					kept |= (unsigned)((four >> 8 * j & 255) != 0) << (k * N + j);
			}
			return kept;
		}
#pragma unroll
		for (unsigned i = 0; i < PER; i++) {
			if (t.valid >> i & 1)
				kept |= (unsigned)(m[t.at(i)] != 0) << i;
		}
		return kept;
	}
};

// Elements of a tile for a thread. Package kernel knows them.
constexpr unsigned COMPACT_32 = 32, COMPACT_64 = 16;

// move_rows moves rows of row units each: from[i] to to[i], where the index stands for one
// of the two. A row is moved by as many neighbouring threads as it has units, rounded up
// to a power of two. gridDim.y cuts long rows.
template <bool SCATTER, class U, class I>
__device__ __forceinline__ void move_rows(U *dst, const U *src, const I *idx, u64 n, u64 row, u64 dst_pitch,
	u64 src_pitch, u64 rows, u64 *bad)
{
	unsigned width = 1;
	while (width < row && width < THREADS)
		width *= 2;
	unsigned lane = threadIdx.x & (width - 1), at_once = THREADS / width;
	for (u64 i = (u64)blockIdx.x * at_once + threadIdx.x / width; i < n; i += (u64)gridDim.x * at_once) {
		u64 j = idx[i];
		if (j >= rows) {
			if (lane == 0 && blockIdx.y == 0)
				atomicAggInc(bad);
			continue;
		}
		U *to = dst + (SCATTER ? j : i) * dst_pitch;
		const U *from = src + (SCATTER ? i : j) * src_pitch;
		for (u64 k = (u64)blockIdx.y * width + lane; k < row; k += (u64)gridDim.y * width)
			to[k] = from[k];
	}
}

// copy_units copies n units of which dst and src are aligned to one each.
template <class U> __device__ __forceinline__ void copy_units(U *dst, const U *src, u64 n)
{
	const u64 tile = THREADS * 4;
	u64 tiles = n / tile;
	for (u64 b = blockIdx.x; b < tiles; b += gridDim.x) {
		u64 i = b * tile + threadIdx.x;
		U v0 = __ldcs(src + i), v1 = __ldcs(src + i + THREADS);
		U v2 = __ldcs(src + i + 2 * THREADS), v3 = __ldcs(src + i + 3 * THREADS);
		dst[i] = v0;
		dst[i + THREADS] = v1;
		dst[i + 2 * THREADS] = v2;
		dst[i + 3 * THREADS] = v3;
	}
	if (blockIdx.x == gridDim.x - 1) {
		for (u64 i = tiles * tile + threadIdx.x; i < n; i += THREADS)
			dst[i] = src[i];
	}
}

__device__ __forceinline__ u64 now()
{
	u64 ns;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
	return ns;
}

__device__ __forceinline__ void wait(u64 ns)
{
	for (u64 start = now(); now() - start < ns;) {
	}
}

} // namespace

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)

// p is aligned to 8 bytes.
KERNEL cuvmm_fill_pattern(u64 *p, u64 bytes, u64 seed)
{
	filler f = {p, seed};
	parts(p, bytes / 8, f);
	if (blockIdx.x == 0 && threadIdx.x < bytes % 8)
		((unsigned char *)(p + bytes / 8))[threadIdx.x] = word(seed, bytes / 8) >> 8 * threadIdx.x;
}

// p is aligned to 8 bytes. result[0] becomes the offset of the first byte that differs, if
// it is less than what stands there. result[1] is increased by the number of all that do.
KERNEL cuvmm_verify_pattern(const void *p, u64 bytes, u64 seed, u64 *result)
{
	verifier f = {(const u64 *)p, seed, ~0ull, 0};
	parts(f.p, bytes / 8, f);
	if (blockIdx.x == 0 && threadIdx.x < bytes % 8) {
		u64 at = bytes / 8 * 8 + threadIdx.x;
		unsigned char want = word(seed, bytes / 8) >> 8 * threadIdx.x;
		if (((const unsigned char *)p)[at] != want) {
			f.first = smaller(f.first, at);
			f.bad++;
		}
	}
	if (f.bad > 0) {
		atomicMin(&result[0], f.first);
		atomicAdd(&result[1], f.bad);
	}
}

// p[i] = start + i * step.
#define IOTA(T)                                                  \
	KERNEL cuvmm_iota_##T(T *p, u64 n, T start, T step)      \
	{                                                        \
		counter<T> f = {p, start, step};                 \
		parts(p, n, f);                                  \
	}
IOTA(u32)
IOTA(u64)
IOTA(f32)
IOTA(f64)

// n > 0. Sums of integers have 64 bits and wrap around, those of floats are doubles. The
// least and the greatest are T, and NaN if any element is.
#define REDUCE(T, SUM)                                                                                   \
	KERNEL cuvmm_sum_##T(const T *p, u64 n, void *partials, u32 *ticket, void *result)               \
	{                                                                                                \
		reduce<T, adding<SUM>>(p, n, partials, ticket, result, 0);                               \
	}                                                                                                \
	KERNEL cuvmm_min_##T(const T *p, u64 n, void *partials, u32 *ticket, void *result)               \
	{                                                                                                \
		reduce<T, lesser<T>>(p, n, partials, ticket, result, p[0]);                              \
	}                                                                                                \
	KERNEL cuvmm_max_##T(const T *p, u64 n, void *partials, u32 *ticket, void *result)               \
	{                                                                                                \
		reduce<T, greater<T>>(p, n, partials, ticket, result, p[0]);                             \
	}
REDUCE(i32, i64)
REDUCE(u32, u64)
REDUCE(i64, i64)
REDUCE(u64, u64)
REDUCE(f32, f64)
REDUCE(f64, f64)

// Appends the elements of src that compare with value as keep says: the sum of 1 (less), 2
// (equal), 4 (greater) and 8 (unordered: one of the two is NaN). Work items are tiles of
// THREADS * COMPACT_32 or THREADS * COMPACT_64 elements.
#define COMPACT(T, BITS)                                                                     \
	KERNEL cuvmm_compact_##T(cuvmm::cursor *c, const T *src, u64 n, T value, u32 keep)   \
	{                                                                                    \
		compare<T> k = {value, keep};                                                \
		compact<T, COMPACT_##BITS>(c, src, n, k);                                    \
	}
COMPACT(i32, 32)
COMPACT(u32, 32)
COMPACT(f32, 32)
COMPACT(i64, 64)
COMPACT(u64, 64)
COMPACT(f64, 64)

// Appends the elements of src whose byte in mask is not 0. Tiles are as above.
KERNEL cuvmm_compact_mask_32(cuvmm::cursor *c, const u32 *src, const unsigned char *mask, u64 n)
{
	masked<u32> k = {mask};
	compact<u32, COMPACT_32>(c, src, n, k);
}
KERNEL cuvmm_compact_mask_64(cuvmm::cursor *c, const u64 *src, const unsigned char *mask, u64 n)
{
	masked<u64> k = {mask};
	compact<u64, COMPACT_64>(c, src, n, k);
}

// Rows and pitches are in units of 1, 4, 8 or 16 bytes. gather: row i of dst is row idx[i]
// of src, which has src_rows. scatter: row idx[i] of dst, which has dst_rows, is row i of
// src; if two have the same index, each unit is of one of them. A row whose index is beyond
// is left out, and *bad is increased by 1.
#define ROWS(SIZE, UNIT, I)                                                                                   \
	KERNEL cuvmm_gather_##SIZE##_##I(void *dst, const void *src, const I *idx, u64 n, u64 row,            \
		u64 dst_pitch, u64 src_pitch, u64 src_rows, u64 *bad)                                         \
	{                                                                                                     \
		move_rows<false>((UNIT *)dst, (const UNIT *)src, idx, n, row, dst_pitch, src_pitch, src_rows, \
			bad);                                                                                 \
	}                                                                                                     \
	KERNEL cuvmm_scatter_##SIZE##_##I(void *dst, const void *src, const I *idx, u64 n, u64 row,           \
		u64 dst_pitch, u64 src_pitch, u64 dst_rows, u64 *bad)                                         \
	{                                                                                                     \
		move_rows<true>((UNIT *)dst, (const UNIT *)src, idx, n, row, dst_pitch, src_pitch, dst_rows,  \
			bad);                                                                                 \
	}
ROWS(1, unsigned char, u32)
ROWS(1, unsigned char, u64)
ROWS(4, u32, u32)
ROWS(4, u32, u64)
ROWS(8, u64, u32)
ROWS(8, u64, u64)
ROWS(16, uint4, u32)
ROWS(16, uint4, u64)

// Copies with the widest accesses for which dst and src are aligned alike.
KERNEL cuvmm_copy(void *dst, const void *src, u64 bytes)
{
	unsigned char *d = (unsigned char *)dst;
	const unsigned char *s = (const unsigned char *)src;
	u64 apart = ((u64)d ^ (u64)s) % 16;
	u64 unit = apart == 0 ? 16 : apart % 8 == 0 ? 8 : apart % 4 == 0 ? 4 : 1;

	// Before and behind the aligned units there are less than 16 bytes each.
	u64 before = smaller((unit - (u64)d % unit) % unit, bytes);
	u64 units = (bytes - before) / unit, behind = (bytes - before) % unit;
	if (blockIdx.x == 0) {
		if (threadIdx.x < before)
			d[threadIdx.x] = s[threadIdx.x];
		if (threadIdx.x < behind)
			d[bytes - behind + threadIdx.x] = s[bytes - behind + threadIdx.x];
	}
	d += before;
	s += before;
	switch (unit) {
	case 16:
		copy_units((uint4 *)d, (const uint4 *)s, units);
		break;
	case 8:
		copy_units((u64 *)d, (const u64 *)s, units);
		break;
	case 4:
		copy_units((u32 *)d, (const u32 *)s, units);
		break;
	default:
		copy_units(d, s, units);
	}
}

// Runs for so long. For tests.
KERNEL cuvmm_wait_clock(u64 ns) { wait(ns); }

// Runs for so long and stores v at *p. For tests, by one thread.
KERNEL cuvmm_delay_store(u64 ns, u32 *p, u32 v)
{
	wait(ns);
	if (blockIdx.x == 0 && threadIdx.x == 0)
		*p = v;
}
