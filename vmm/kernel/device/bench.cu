// Checks the built-in kernels and measures them against device-to-device copies of the
// same run. It stands alone:
//
//	nvcc -O3 -std=c++17 -arch=sm_90 bench.cu -o bench && ./bench
//
// Rates are bytes read plus bytes written, in GB/s. The ratio is the median over the rounds
// of the rate divided by that of the copy in the same round. Between the least and the
// greatest ratio of six rounds or more lies the true median with at least 95 %. With
// -DCUVMM_NO_CAPACITY_CHECK the checks of overflow have to fail.

#include "builtin.cu"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#define CUDA(call)                                                                                        \
	do {                                                                                              \
		cudaError_t err = (call);                                                                 \
		if (err != cudaSuccess) {                                                                 \
			std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(err)); \
			std::exit(2);                                                                     \
		}                                                                                         \
	} while (0)

static int failures, checks;

static void check(bool ok, const std::string &what)
{
	checks++;
	if (!ok) {
		failures++;
		std::printf("WRONG: %s\n", what.c_str());
	}
}

// Buffers of the whole run.
constexpr u64 BIG = 1ull << 30;
constexpr unsigned CURSORS = 8, WIDE = 5; // from WIDE on, of elements of 64 bits
static unsigned char *input, *output, *scratch; // scratch: 64 MiB
static cuvmm::cursor *cursors;
static unsigned multiprocessors;

static unsigned grid_of(u64 n, u64 tile) { return (unsigned)std::max<u64>(1, (n + tile - 1) / tile); }
static unsigned wide() { return multiprocessors * 8; }

template <class T> static std::vector<T> download(const void *p, u64 n)
{
	std::vector<T> v(n);
	if (n > 0)
		CUDA(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDefault));
	return v;
}

template <class T> static void upload(void *p, const std::vector<T> &v)
{
	if (!v.empty())
		CUDA(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyDefault));
}

static cuvmm::cursor get(unsigned i) { return download<cuvmm::cursor>(cursors + i, 1)[0]; }
static void set(unsigned i, const cuvmm::cursor &c) { upload(cursors + i, std::vector<cuvmm::cursor>{c}); }

// mixed is a number that looks random, by its index.
__host__ __device__ inline u64 mixed(u64 i)
{
	i = (i + 1) * 0x9e3779b97f4a7c15ull;
	i = (i ^ i >> 32) * 0xd6e8feb86659fd93ull;
	return i ^ i >> 32;
}

__global__ void fill_mixed(u32 *p, u64 n)
{
	for (u64 i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull)
		p[i] = (u32)mixed(i);
}

// digest adds up count, sum and sum of mixed values of what is less than value.
__global__ void digest(const u32 *p, u64 n, u64 value, u64 *to)
{
	u64 count = 0, sum = 0, mix = 0;
	for (u64 i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull) {
		if (p[i] < value) {
			count++;
			sum += p[i];
			mix += mixed(p[i]);
		}
	}
	atomicAdd(&to[0], count);
	atomicAdd(&to[1], sum);
	atomicAdd(&to[2], mix);
}

static std::vector<u64> digested(const void *p, u64 n, u64 value)
{
	CUDA(cudaMemset(scratch, 0, 24));
	digest<<<1024, 256>>>((const u32 *)p, n, value, (u64 *)scratch);
	return download<u64>(scratch, 3);
}

template <unsigned PER> __global__ void __launch_bounds__(THREADS)
	compact_by(cuvmm::cursor *c, const u32 *src, u64 n, u32 value, u32 keep)
{
	compact<u32, PER>(c, src, n, compare<u32>{value, keep});
}

// Kernels that append as they go, one element for a lane.
enum how { PLAIN_32, PLAIN_64, AGG_32, AGG_64, SAME_64, CURSOR, PER_LANE };

// same_pointer is the usual idiom, for which all lanes have to pass the same p.
__device__ inline u64 same_pointer(u64 *p)
{
	unsigned below, lanes = __activemask();
	asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
	u64 old = 0;
	if ((lanes & below) == 0)
		old = atomicAdd(p, (u64)__popc(lanes));
	return __shfl_sync(lanes, old, __ffs(lanes) - 1) + __popc(lanes & below);
}

template <how HOW>
__global__ void append_by(cuvmm::cursor *c, const u32 *src, u64 n, u32 value, u32 *out, const u32 *ones)
{
	u64 i = blockIdx.x * 256ull + threadIdx.x;
	u32 one = HOW == PER_LANE ? ones[threadIdx.x] : 1; // the compiler cannot see that it is 1
	if (i >= n)
		return;
	u32 v = src[i];
	if (v >= value)
		return;
	switch (HOW) {
	case PLAIN_32:
		out[atomicAdd((u32 *)&c->reserved, 1u)] = v;
		break;
	case PLAIN_64:
		out[atomicAdd(&c->reserved, 1ull)] = v;
		break;
	case AGG_32:
		out[atomicAggInc((u32 *)&c->reserved)] = v;
		break;
	case AGG_64:
		out[atomicAggInc(&c->reserved)] = v;
		break;
	case SAME_64:
		out[same_pointer(&c->reserved)] = v;
		break;
	case CURSOR:
		if (!cuvmm::append(c, v))
			cuvmm::note_unfinished(c, i);
		break;
	case PER_LANE:
		out[atomicAdd((u32 *)&c->reserved, one)] = v;
		break;
	}
}

// append_items is what a kernel looks like that can be launched again.
__global__ void append_items(cuvmm::cursor *c, const u32 *src, u64 n, u32 value)
{
	u64 i = blockIdx.x * 256ull + threadIdx.x;
	if (i >= cuvmm::item_count(c, n))
		return;
	i = cuvmm::item(c, i);
	if (src[i] < value && !cuvmm::append(c, src[i]))
		cuvmm::note_unfinished(c, i);
}

// Lanes with different counters at the same time.
__global__ void count_by_three(u64 *counts, u32 *seen)
{
	u64 i = blockIdx.x * 256ull + threadIdx.x;
	if (i % 7 == 0)
		return;
	u64 at = atomicAggInc(&counts[i % 3]);
	atomicAdd(&seen[i % 3 * 100000 + at], 1u);
}

// appended runs launch(items) until all is appended, with a capacity that is too small at
// first, and returns what it appended, sorted.
template <class T>
static std::vector<T> appended(const std::string &what, u64 kept, u64 items, u64 capacity, T *out,
	const std::function<void(u64)> &launch)
{
	const u64 guard = 4096;
	u64 *lists = (u64 *)(scratch + (32 << 20));
	CUDA(cudaMemset(out, 0xee, (kept + guard) * sizeof(T)));
	cuvmm::cursor c = {};
	c.data = out;
	c.elem_size = sizeof(T);
	c.items = lists;
	c.limit = items;
	c.capacity = capacity;
	u64 before = 0;
	for (int round = 0; round < 20; round++) {
		set(0, c);
		launch(c.todo ? c.todo_count : items);
		CUDA(cudaDeviceSynchronize());
		cuvmm::cursor r = get(0);
		bool fit = r.reserved <= r.capacity;
		u64 length = fit ? r.reserved : r.written;
		check(length <= r.capacity && length >= before, what + ": length in bounds");
		check(fit == (r.unfinished == 0), what + ": items are unfinished if and only if something did not fit");
		check(r.reserved == kept, what + ": what is needed is counted");
		std::vector<unsigned char> rest =
			download<unsigned char>(out + length, (kept + guard - length) * sizeof(T));
		check(std::all_of(rest.begin(), rest.end(), [](unsigned char b) { return b == 0xee; }),
			what + ": nothing is written beyond the length");
		if (fit || r.unfinished > items || r.unfinished == 0) {
			check(fit && length == kept, what + ": all is appended in the end");
			std::vector<T> got = download<T>(out, std::min(length, kept));
			std::sort(got.begin(), got.end());
			return got;
		}
		// The rest goes behind what is there, with some more room.
		before = c.reserved = length;
		c.unfinished = 0;
		c.todo = c.items;
		c.todo_count = r.unfinished;
		c.items = c.items == lists ? lists + items : lists;
		c.capacity = round == 0 ? length + (kept - length) / 2 : kept;
	}
	check(false, what + ": all is appended");
	return {};
}

template <class T, class Kernel>
static void check_compact(const char *name, Kernel kernel, const std::vector<T> &values, T value, u32 keep, u64 offset)
{
	const u64 tile = THREADS * (sizeof(T) == 4 ? COMPACT_32 : COMPACT_64);
	std::vector<T> src(values.begin() + offset, values.end()), want;
	for (T v : src) {
		u32 is = v < value ? 1 : v == value ? 2 : v > value ? 4 : 8;
		if (is & keep)
			want.push_back(v == v ? v : T()); // NaN cannot be sorted
	}
	std::sort(want.begin(), want.end());
	upload(input, values);
	for (u64 capacity : {(u64)want.size(), (u64)want.size() / 2, (u64)0}) {
		std::string what = std::string("compact_") + name + " keep " + std::to_string(keep) + " from " +
			std::to_string(offset) + " of " + std::to_string(values.size()) + " into " + std::to_string(capacity);
		u64 items = (src.size() + tile - 1) / tile;
		std::vector<T> got = appended<T>(what, want.size(), items, capacity, (T *)output, [&](u64 n) {
			kernel<<<std::max<u64>(n, 1), THREADS>>>(cursors, (T *)input + offset, src.size(), value, keep);
		});
		for (T &v : got)
			v = v == v ? v : T();
		std::sort(got.begin(), got.end());
		check(got == want, what + ": the same elements");
	}
}

template <class T, class Kernel> static void check_mask(const char *name, Kernel kernel, u64 n, u64 offset, u64 shift)
{
	const u64 tile = THREADS * (sizeof(T) == 4 ? COMPACT_32 : COMPACT_64);
	std::vector<T> src(n), want;
	std::vector<unsigned char> mask(n + shift);
	for (u64 i = 0; i < n; i++) {
		src[i] = (T)mixed(i);
		mask[i + shift] = (unsigned char)(mixed(i + 7) % 3);
	}
	for (u64 i = offset; i < n; i++) {
		if (mask[i - offset + shift])
			want.push_back(src[i]);
	}
	std::sort(want.begin(), want.end());
	upload(input, src);
	upload(scratch, mask);
	std::string what = std::string("compact_mask_") + name + " from " + std::to_string(offset) + " and " +
		std::to_string(shift);
	std::vector<T> got = appended<T>(what, want.size(), (n - offset + tile - 1) / tile, want.size() / 3,
		(T *)output, [&](u64 items) {
			kernel<<<items, THREADS>>>(cursors, (T *)input + offset, scratch + shift, n - offset);
		});
	check(got == want, what + ": the same elements");
}

template <class T> static std::vector<T> numbers(u64 n)
{
	std::vector<T> v(n);
	for (u64 i = 0; i < n; i++)
		v[i] = (T)(i64)(mixed(i) >> 33) - (T)(1 << 30); // both signs, or wrapped around
	return v;
}

template <class T, class S, class K>
static void check_reduce(const char *name, K sum, K least, K greatest, u64 n, u64 offset, bool nan)
{
	std::vector<T> v = numbers<T>(n + offset);
	if (nan)
		v[offset + n / 2] = std::numeric_limits<T>::quiet_NaN();
	upload(input, v);
	S want = 0;
	for (u64 i = offset; i < v.size(); i++)
		want += (S)v[i];
	T lo = *std::min_element(v.begin() + offset, v.end());
	T hi = *std::max_element(v.begin() + offset, v.end());
	std::string what = std::string(name) + " of " + std::to_string(n) + " from " + std::to_string(offset);
	u32 *ticket = (u32 *)scratch;
	void *result = scratch + 8, *partials = scratch + 4096;
	CUDA(cudaMemset(scratch, 0, 4096));
	for (unsigned grid : {1u, 3u, 700u}) { // the ticket is 0 again each time
		sum<<<grid, THREADS>>>((T *)input + offset, n, partials, ticket, result);
		S got = download<S>(result, 1)[0];
		check(nan ? got != got : got == want, "sum_" + what); // whole numbers: exact in double
		sum<<<grid, THREADS>>>((T *)input + offset, n, partials, ticket, result);
		S again = download<S>(result, 1)[0];
		check(std::memcmp(&got, &again, sizeof(S)) == 0, "sum_" + what + " twice the same");
		least<<<grid, THREADS>>>((T *)input + offset, n, partials, ticket, result);
		T a = download<T>(result, 1)[0];
		check(nan ? a != a : a == lo, "min_" + what);
		greatest<<<grid, THREADS>>>((T *)input + offset, n, partials, ticket, result);
		T b = download<T>(result, 1)[0];
		check(nan ? b != b : b == hi, "max_" + what);
	}
}

static u64 host_word(u64 seed, u64 i)
{
	u64 x = seed + (i + 1) * 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static void check_pattern(u64 bytes, u64 offset)
{
	std::string what = std::to_string(bytes) + " bytes at " + std::to_string(offset);
	unsigned char *p = output + offset;
	u64 *result = (u64 *)scratch;
	auto verify = [&]() {
		upload(scratch, std::vector<u64>{~0ull, 0});
		cuvmm_verify_pattern<<<5, THREADS>>>(p, bytes, 42, result);
		return download<u64>(result, 2);
	};
	CUDA(cudaMemset(output, 0xee, offset + bytes + 64));
	cuvmm_fill_pattern<<<3, THREADS>>>((u64 *)p, bytes, 42);
	std::vector<unsigned char> got = download<unsigned char>(output, offset + bytes + 64);
	bool ok = true;
	for (u64 i = 0; i < got.size(); i++) {
		bool in = i >= offset && i < offset + bytes;
		ok = ok && got[i] == (in ? (unsigned char)(host_word(42, (i - offset) / 8) >> 8 * (i % 8)) : 0xee);
	}
	check(ok, "fill_pattern " + what);
	std::vector<u64> r = verify();
	check(r[0] == ~0ull && r[1] == 0, "verify_pattern finds nothing in " + what);
	if (bytes == 0)
		return;
	for (u64 at : {(u64)0, bytes / 2, bytes - 1}) {
		unsigned char wrong = got[offset + at] ^ 0x10;
		CUDA(cudaMemcpy(p + at, &wrong, 1, cudaMemcpyDefault));
		r = verify();
		check(r[0] == at && r[1] == 1, "verify_pattern finds byte " + std::to_string(at) + " of " + what);
		CUDA(cudaMemcpy(p + at, &got[offset + at], 1, cudaMemcpyDefault));
	}
	CUDA(cudaMemset(p, 0xa5, bytes));
	r = verify();
	u64 same = std::count(got.begin() + offset, got.begin() + offset + bytes, 0xa5);
	check(r[1] == bytes - same, "verify_pattern counts all of " + what);
}

template <class T, class K> static void check_iota(const char *name, K kernel, u64 n, u64 offset, T start, T step)
{
	CUDA(cudaMemset(output, 0xee, (n + 64) * sizeof(T)));
	kernel<<<7, THREADS>>>((T *)output + offset, n, start, step);
	std::vector<T> got = download<T>(output, n + 64);
	T outside;
	std::memset(&outside, 0xee, sizeof(T));
	bool ok = true;
	for (u64 i = 0; i < got.size(); i++) {
		T want = outside;
		if (i >= offset && i < offset + n) {
			u64 k = i - offset;
			want = T(0.5) == 0 ? (T)(start + (T)k * step) : (T)std::fma((double)k, (double)step, (double)start);
		}
		ok = ok && std::memcmp(&want, &got[i], sizeof(T)) == 0;
	}
	check(ok, std::string("iota_") + name + " of " + std::to_string(n) + " from " + std::to_string(offset));
}

template <class I, class K> static void check_rows(const char *name, K gather, K scatter, u64 unit, u64 row)
{
	const u64 n = 1000, rows = 1500, pitch = row + 3, bytes = rows * pitch * unit;
	std::vector<unsigned char> src(bytes);
	for (u64 i = 0; i < bytes; i++)
		src[i] = (unsigned char)mixed(i);
	std::vector<I> idx(n);
	for (u64 i = 0; i < n; i++)
		idx[i] = (I)(i * 7 % rows);
	idx[3] = (I)rows;
	idx[n - 1] = (I)-1;
	upload(input, src);
	upload(scratch + 4096, idx);
	u64 *bad = (u64 *)scratch;
	for (bool back : {false, true}) {
		std::vector<unsigned char> want(bytes, 0xee);
		for (u64 i = 0; i < n; i++) {
			if (idx[i] < rows) {
				u64 to = (back ? (u64)idx[i] : i) * pitch * unit, from = (back ? i : (u64)idx[i]) * pitch * unit;
				std::memcpy(&want[to], &src[from], row * unit);
			}
		}
		for (dim3 grid : {dim3(1), dim3(40), dim3(9, 3)}) {
			CUDA(cudaMemset(output, 0xee, bytes));
			CUDA(cudaMemset(bad, 0, 8));
			(back ? scatter : gather)<<<grid, THREADS>>>(output, input, (I *)(scratch + 4096), n, row, pitch, pitch,
				rows, bad);
			std::string what = std::string(back ? "scatter_" : "gather_") + name + " rows of " + std::to_string(row);
			check(download<unsigned char>(output, bytes) == want, what);
			check(download<u64>(bad, 1)[0] == 2, what + " counts what is beyond");
		}
	}
}

static void check_copy()
{
	const u64 room = 40000;
	std::vector<unsigned char> src(room);
	for (u64 i = 0; i < room; i++)
		src[i] = (unsigned char)mixed(i);
	upload(input, src);
	for (u64 to : {0, 1, 4, 8, 12, 15}) {
		for (u64 from : {0, 1, 3, 4, 8, 15}) {
			for (u64 n : {0, 1, 5, 15, 17, 255, 4096, 16384, 39000}) {
				CUDA(cudaMemset(output, 0xee, room));
				cuvmm_copy<<<3, THREADS>>>(output + to, input + from, n);
				std::vector<unsigned char> want(room, 0xee);
				std::copy(src.begin() + from, src.begin() + from + n, want.begin() + to);
				check(download<unsigned char>(output, room) == want, "copy of " + std::to_string(n) + " from " +
					std::to_string(from) + " to " + std::to_string(to));
			}
		}
	}
}

static void check_all()
{
	for (u64 n : {1, 4095, 4096, 100003}) {
		for (u64 offset : {0, 1}) {
			if (offset >= n)
				continue;
			check_compact<u32>("u32", cuvmm_compact_u32, numbers<u32>(n), 1u << 29, 1, offset);
			check_compact<i32>("i32", cuvmm_compact_i32, numbers<i32>(n), 0, 1 | 2, offset);
			check_compact<i64>("i64", cuvmm_compact_i64, numbers<i64>(n), 0, 4, offset);
			check_compact<u64>("u64", cuvmm_compact_u64, numbers<u64>(n), 1ull << 29, 15, offset);
			std::vector<f32> f = numbers<f32>(n);
			std::vector<f64> d = numbers<f64>(n);
			for (u64 i = 0; i < n; i += 5)
				f[i] = d[i] = std::numeric_limits<f32>::quiet_NaN();
			check_compact<f32>("f32", cuvmm_compact_f32, f, 0, 1 | 8, offset);
			check_compact<f64>("f64", cuvmm_compact_f64, d, 0, 4, offset);
			check_compact<f64>("f64", cuvmm_compact_f64, d, 0, 0, offset);
		}
	}
	for (u64 offset : {0, 1}) {
		for (u64 shift : {0, 1}) {
			check_mask<u32>("32", cuvmm_compact_mask_32, 100003, offset, shift);
			check_mask<u64>("64", cuvmm_compact_mask_64, 100003, offset, shift);
		}
	}

	// The form for lanes, and counters that differ within a warp.
	std::vector<u32> v = numbers<u32>(100003), want;
	upload(input, v);
	std::copy_if(v.begin(), v.end(), std::back_inserter(want), [](u32 x) { return x < 1u << 29; });
	std::sort(want.begin(), want.end());
	for (u64 capacity : {(u64)want.size(), (u64)want.size() / 2, (u64)0}) {
		std::string what = "append into " + std::to_string(capacity);
		check(appended<u32>(what, want.size(), v.size(), capacity, (u32 *)output, [&](u64 items) {
			append_items<<<grid_of(items, 256), 256>>>(cursors, (u32 *)input, v.size(), 1u << 29);
		}) == want, what + ": the same elements");
	}
	CUDA(cudaMemset(scratch, 0, 2 << 20));
	count_by_three<<<100, 256>>>((u64 *)scratch, (u32 *)(scratch + 4096));
	u64 counts[3] = {};
	for (u64 i = 0; i < 25600; i++)
		counts[i % 3] += i % 7 != 0;
	std::vector<u64> got = download<u64>(scratch, 3);
	std::vector<u32> seen = download<u32>(scratch + 4096, 300000);
	for (u64 k = 0; k < 3; k++) {
		bool once = true;
		for (u64 i = 0; i < 100000; i++)
			once = once && seen[k * 100000 + i] == (i < counts[k]);
		check(got[k] == counts[k] && once, "atomicAggInc on different counters");
	}

	for (u64 n : {1, 2, 255, 4097, 100003}) {
		for (u64 offset : {0, 1, 3}) {
			check_reduce<i32, i64>("i32", cuvmm_sum_i32, cuvmm_min_i32, cuvmm_max_i32, n, offset, false);
			check_reduce<u32, u64>("u32", cuvmm_sum_u32, cuvmm_min_u32, cuvmm_max_u32, n, offset, false);
			check_reduce<i64, i64>("i64", cuvmm_sum_i64, cuvmm_min_i64, cuvmm_max_i64, n, offset, false);
			check_reduce<u64, u64>("u64", cuvmm_sum_u64, cuvmm_min_u64, cuvmm_max_u64, n, offset, false);
			for (bool nan : {false, true}) {
				check_reduce<f32, f64>("f32", cuvmm_sum_f32, cuvmm_min_f32, cuvmm_max_f32, n, offset, nan);
				check_reduce<f64, f64>("f64", cuvmm_sum_f64, cuvmm_min_f64, cuvmm_max_f64, n, offset, nan);
			}
		}
	}
	for (u64 bytes : {0, 1, 7, 8, 9, 4096, 16384, 100003}) {
		check_pattern(bytes, 0);
		check_pattern(bytes, 8);
	}
	for (u64 n : {0, 1, 100003}) {
		for (u64 offset : {0, 1, 3}) {
			check_iota<u32>("u32", cuvmm_iota_u32, n, offset, 7, 3);
			check_iota<u64>("u64", cuvmm_iota_u64, n, offset, 1ull << 60, ~0ull);
			check_iota<f32>("f32", cuvmm_iota_f32, n, offset, 0.1f, 0.7f);
			check_iota<f64>("f64", cuvmm_iota_f64, n, offset, 0.1, -0.7);
		}
	}
	for (u64 row : {1, 3, 32, 700}) {
		check_rows<u32>("1_u32", cuvmm_gather_1_u32, cuvmm_scatter_1_u32, 1, row);
		check_rows<u64>("4_u64", cuvmm_gather_4_u64, cuvmm_scatter_4_u64, 4, row);
		check_rows<u32>("8_u32", cuvmm_gather_8_u32, cuvmm_scatter_8_u32, 8, row);
		check_rows<u64>("16_u64", cuvmm_gather_16_u64, cuvmm_scatter_16_u64, 16, row);
	}
	check_copy();

	cudaEvent_t from, to;
	CUDA(cudaEventCreate(&from));
	CUDA(cudaEventCreate(&to));
	CUDA(cudaEventRecord(from));
	cuvmm_delay_store<<<1, 1>>>(20000000, (u32 *)scratch, 77);
	CUDA(cudaEventRecord(to));
	CUDA(cudaEventSynchronize(to));
	float ms;
	CUDA(cudaEventElapsedTime(&ms, from, to));
	check(ms > 19 && download<u32>(scratch, 1)[0] == 77, "delay_store takes 20 ms and stores");
}

// measured is one line of the table.
struct measured {
	std::string name;
	double bytes;
	int launches; // timed together, each with a cursor of its own
	std::function<void(unsigned)> launch;
	std::vector<double> rate;
};

static double median(std::vector<double> v)
{
	std::sort(v.begin(), v.end());
	return v[v.size() / 2];
}

static void run(std::vector<measured> &list, int rounds, const std::vector<cuvmm::cursor> &fresh)
{
	cudaEvent_t from, to;
	CUDA(cudaEventCreate(&from));
	CUDA(cudaEventCreate(&to));
	for (int round = -1; round < rounds; round++) { // the first warms up
		for (measured &m : list) {
			upload(cursors, fresh);
			CUDA(cudaDeviceSynchronize());
			CUDA(cudaEventRecord(from));
			for (int i = 0; i < m.launches; i++)
				m.launch(i);
			CUDA(cudaEventRecord(to));
			CUDA(cudaEventSynchronize(to));
			CUDA(cudaGetLastError());
			float ms;
			CUDA(cudaEventElapsedTime(&ms, from, to));
			if (round >= 0)
				m.rate.push_back(m.bytes * m.launches / ms / 1e6);
		}
	}
}

static void print(const std::vector<measured> &list)
{
	std::printf("\n%-44s %9s %9s %9s %9s\n", "", "GB/s", "ratio", "least", "greatest");
	for (const measured &m : list) {
		std::vector<double> ratio;
		for (size_t i = 0; i < m.rate.size(); i++)
			ratio.push_back(m.rate[i] / list[0].rate[i]);
		auto ends = std::minmax_element(ratio.begin(), ratio.end());
		std::printf("%-44s %9.1f %9.3f %9.3f %9.3f\n", m.name.c_str(), median(m.rate), median(ratio), *ends.first,
			*ends.second);
	}
}

template <unsigned PER> static measured by_tile(u64 n, u64 kept, bool one_for_each)
{
	unsigned items = grid_of(n, THREADS * PER), grid = one_for_each ? items : wide();
	return {"compact_u32, half kept, tiles of " + std::to_string(THREADS * PER) + (one_for_each ? "" : ", few blocks"),
		4.0 * (n + kept), 5, [=](unsigned i) {
			compact_by<PER><<<grid, THREADS>>>(cursors + i, (u32 *)input, n, 1u << 31, 1);
		}, {}};
}

template <how HOW> static measured by_lane(const char *name, u64 n, u64 kept)
{
	return {name, 4.0 * (n + kept), 2, [=](unsigned i) {
			append_by<HOW><<<grid_of(n, 256), 256>>>(cursors + i, (u32 *)input, n, 1u << 31, (u32 *)output,
				(u32 *)(scratch + 8192));
		}, {}};
}

int main()
{
	cudaDeviceProp device;
	CUDA(cudaGetDeviceProperties(&device, 0));
	multiprocessors = device.multiProcessorCount;
	std::printf("%s, %u multiprocessors\n", device.name, multiprocessors);
	CUDA(cudaMalloc((void **)&input, BIG));
	CUDA(cudaMalloc((void **)&output, BIG + 4096));
	CUDA(cudaMalloc((void **)&scratch, 64 << 20));
	CUDA(cudaMalloc((void **)&cursors, CURSORS * sizeof(cuvmm::cursor)));

	check_all();
	CUDA(cudaDeviceSynchronize());
	std::printf("%d checks, %d wrong\n", checks, failures);

	const u64 n = BIG / 4, half = 1ull << 31;
	fill_mixed<<<4096, 256>>>((u32 *)input, n);
	upload(scratch + 8192, std::vector<u32>(256, 1));
	std::vector<u64> want = digested(input, n, half);
	cuvmm::cursor c = {};
	c.data = output;
	c.elem_size = sizeof(u32);
	c.capacity = n;
	c.items = (u64 *)(scratch + (32 << 20));
	c.limit = 1 << 20;
	std::vector<cuvmm::cursor> fresh(CURSORS, c);
	for (unsigned i = WIDE; i < CURSORS; i++)
		fresh[i].elem_size = sizeof(u64);
	u64 kept = want[0];

	// Each writes to the same output. What the compactions leave there is looked at first.
	const unsigned items = grid_of(n, THREADS * COMPACT_32);
	u32 *ticket = (u32 *)scratch;
	void *result = scratch + 64, *partials = scratch + (1 << 20);
	CUDA(cudaMemset(output, 0, BIG));
	upload(cursors, fresh);
	cuvmm_compact_u32<<<items, THREADS>>>(cursors, (u32 *)input, n, 1u << 31, 1);
	check(get(0).reserved == kept && digested(output, kept, 1ull << 32) == want, "compact_u32 of 1 GiB");
	CUDA(cudaMemset(output, 0, BIG));
	append_by<CURSOR><<<grid_of(n, 256), 256>>>(cursors + 1, (u32 *)input, n, 1u << 31, nullptr, nullptr);
	check(get(1).reserved == kept && digested(output, kept, 1ull << 32) == want, "append of 1 GiB");
	CUDA(cudaMemset(scratch, 0, 4096));

	std::vector<measured> list;
	list.push_back({"cudaMemcpy, device to device", 2.0 * BIG, 5, [](unsigned) {
			CUDA(cudaMemcpyAsync(output, input, BIG, cudaMemcpyDeviceToDevice));
		}, {}});
	list.push_back({"cuvmm_copy", 2.0 * BIG, 5, [](unsigned) {
			cuvmm_copy<<<grid_of(BIG, 16384), THREADS>>>(output, input, BIG);
		}, {}});
	list.push_back({"cuvmm_copy, few blocks", 2.0 * BIG, 5, [](unsigned) {
			cuvmm_copy<<<wide(), THREADS>>>(output, input, BIG);
		}, {}});
	list.push_back(by_tile<4>(n, kept, true));
	list.push_back(by_tile<8>(n, kept, true));
	list.push_back(by_tile<16>(n, kept, true));
	list.push_back(by_tile<32>(n, kept, true));
	list.push_back(by_tile<16>(n, kept, false));
	list.push_back({"cuvmm_compact_u32, all kept", 2.0 * BIG, 5, [=](unsigned i) {
			cuvmm_compact_u32<<<items, THREADS>>>(cursors + i, (u32 *)input, n, 0, 7);
		}, {}});
	list.push_back({"cuvmm_compact_u64, all kept", 2.0 * BIG, CURSORS - WIDE, [=](unsigned i) {
			cuvmm_compact_u64<<<grid_of(n / 2, THREADS * COMPACT_64), THREADS>>>(cursors + WIDE + i, (u64 *)input,
				n / 2, 0, 7);
		}, {}});
	list.push_back({"cuvmm_compact_u32, misaligned, half kept", 4.0 * (n + kept), 5, [=](unsigned i) {
			cuvmm_compact_u32<<<items, THREADS>>>(cursors + i, (u32 *)input + 1, n - 1, 1u << 31, 1);
		}, {}});
	for (bool few : {false, true}) {
		std::string suffix = few ? ", few blocks" : "";
		unsigned grid = few ? wide() : grid_of(BIG, 16384);
		list.push_back({"cuvmm_fill_pattern" + suffix, 1.0 * BIG, 5, [=](unsigned) {
				cuvmm_fill_pattern<<<grid, THREADS>>>((u64 *)output, BIG, 42);
			}, {}});
		list.push_back({"cuvmm_verify_pattern" + suffix, 1.0 * BIG, 5, [=](unsigned) {
				cuvmm_verify_pattern<<<grid, THREADS>>>(output, BIG, 42, (u64 *)result);
			}, {}});
		list.push_back({"cuvmm_sum_f32" + suffix, 1.0 * BIG, 5, [=](unsigned) {
				cuvmm_sum_f32<<<grid, THREADS>>>((f32 *)input, n, partials, ticket, result);
			}, {}});
		list.push_back({"cuvmm_sum_u64" + suffix, 1.0 * BIG, 5, [=](unsigned) {
				cuvmm_sum_u64<<<grid, THREADS>>>((u64 *)input, n / 2, partials, ticket, result);
			}, {}});
		list.push_back({"cuvmm_min_f32" + suffix, 1.0 * BIG, 5, [=](unsigned) {
				cuvmm_min_f32<<<grid, THREADS>>>((f32 *)input, n, partials, ticket, result);
			}, {}});
	}
	list.push_back({"cuvmm_iota_f32", 1.0 * BIG, 5, [=](unsigned) {
			cuvmm_iota_f32<<<grid_of(BIG, 16384), THREADS>>>((f32 *)output, n, 0, 1);
		}, {}});
	run(list, 11, fresh);
	print(list);

	// The counters are the bottleneck here, so a quarter is enough. The ratio is to nvcc's
	// own addition for a warp, of the same width.
	u64 few = n / 4, few_kept = digested(input, few, half)[0];
	std::vector<measured> narrow, broad;
	narrow.push_back(by_lane<PLAIN_32>("atomicAdd(p, 1), 32 bits", few, few_kept));
	narrow.push_back(by_lane<AGG_32>("atomicAggInc(p), 32 bits", few, few_kept));
	narrow.push_back(by_lane<PER_LANE>("atomicAdd(p, x), one for each lane", few, few_kept));
	broad.push_back(by_lane<PLAIN_64>("atomicAdd(p, 1), 64 bits", few, few_kept));
	broad.push_back(by_lane<AGG_64>("atomicAggInc(p), 64 bits", few, few_kept));
	broad.push_back(by_lane<SAME_64>("the same without __match_any_sync", few, few_kept));
	broad.push_back(by_lane<CURSOR>("cuvmm::append", few, few_kept));
	run(narrow, 7, fresh);
	run(broad, 7, fresh);
	print(narrow);
	print(broad);

	std::printf("\n%d checks, %d wrong\n", checks, failures);
	return failures > 0;
}
