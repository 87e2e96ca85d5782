// Appending from kernels to memory that its owner can let grow.
//
// A kernel reserves places with one atomic addition for a block or for a warp, and
// what does not fit is counted and never written. The host then lets the memory grow
// and launches the unfinished part again. The order of what was appended is any.
//
// This file includes nothing. nvcc compiles it, and NVRTC.
//
// Copyright of the cuvmm authors. Licensed under the Apache License, Version 2.0.

#ifndef CUVMM_APPEND_CUH
#define CUVMM_APPEND_CUH

namespace cuvmm {

// cursor says where the next elements go. It lies in device memory, and the host reads
// and writes it between launches. What all blocks add to has cache lines of its own: an
// addition takes its line out of the multiprocessor's cache, and what lies beside it would
// have to be fetched again for each. Its layout is a contract with package vmm/kernel:
//
//	offset  field
//	     0  reserved    elements that were asked for, whether they fit or not
//	     8  written     see below; only set where reserved > capacity
//	    16  unfinished  work items that were noted as not done
//	    24  wrong_size  bytes of a T that is not of the elements' size; 0: there was none
//	   128  capacity    elements that data has room for
//	   136  data        the elements
//	   144  items       numbers of the work items that were noted
//	   152  limit       numbers that items has room for
//	   160  todo        work items of this launch; null: all of them
//	   168  todo_count  how many todo holds
//	   176  elem_size   bytes of an element
//
// Reservations follow each other without a gap, so the place numbered capacity lies in
// at most one of them: the first that does not fit. Those before it fit and are written,
// and those after it begin beyond capacity and do not fit either. So exactly the places
// [0, written) are written, where written is the start of that one, or [0, reserved)
// where everything fit.
struct cursor {
	unsigned long long reserved;
	unsigned long long written;
	unsigned long long unfinished;
	unsigned long long wrong_size;
	unsigned long long unused[12];
	unsigned long long capacity;
	void *data;
	unsigned long long *items;
	unsigned long long limit;
	const unsigned long long *todo;
	unsigned long long todo_count;
	unsigned long long elem_size;
};
static_assert(sizeof(cursor) == 184, "package vmm/kernel knows this layout");

// full is what reserve returns where the elements do not fit.
static const unsigned long long full = ~0ull;

// fitted returns first, where n > 0 reserved places begin, or full if they do not fit.
__device__ __forceinline__ unsigned long long fitted(cursor *c, unsigned long long first, unsigned long long n)
{
#ifndef CUVMM_NO_CAPACITY_CHECK // Only tests define it, to see that the check is needed.
	unsigned long long capacity = c->capacity;
	if (first + n > capacity) {
		if (first <= capacity)
			c->written = first;
		return full;
	}
#endif
	return first;
}

// is_element returns whether T has the size of the cursor's elements. If not, it notes that, and
// the host's Append returns an error.
template <class T> __device__ __forceinline__ bool is_element(cursor *c)
{
	if (c->elem_size == sizeof(T))
		return true;
	c->wrong_size = sizeof(T);
	return false;
}

// reserve reserves n > 0 places by one atomic addition and returns the first of them, or
// full. The caller writes all of them. It is for one thread that asks for many.
__device__ __forceinline__ unsigned long long reserve(cursor *c, unsigned long long n)
{
	return fitted(c, atomicAdd(&c->reserved, n), n);
}

// peers are the lanes of a warp that make the same call together for the same address.
struct peers {
	unsigned lanes;  // one bit for each
	unsigned before; // those below the calling lane

	__device__ __forceinline__ explicit peers(const void *address)
	{
		unsigned below;
		asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
		lanes = __match_any_sync(__activemask(), (unsigned long long)address);
		before = lanes & below;
	}
	__device__ __forceinline__ bool leader() const { return before == 0; }
	__device__ __forceinline__ unsigned rank() const { return __popc(before); }
	__device__ __forceinline__ unsigned count() const { return __popc(lanes); }

	// from_leader returns what the leader passed, to each lane.
	template <class U> __device__ __forceinline__ U from_leader(U value) const
	{
		return __shfl_sync(lanes, value, __ffs(lanes) - 1);
	}
};

template <class U> __device__ __forceinline__ U add_one(U *p)
{
	peers w(p);
	U old = 0;
	if (w.leader())
		old = atomicAdd(p, (U)w.count());
	return w.from_leader(old) + w.rank();
}

// append stores one element for each lane that calls it, at any place in any order. Any
// lanes of a warp may call it, in divergent code too; those that come together ask for
// their places at once. It returns false where these do not all fit, or where T has not the
// size of an element, and then none of them is written.
template <class T> __device__ __forceinline__ bool append(cursor *c, const T &value)
{
	if (!is_element<T>(c))
		return false;
	peers w(c);
	unsigned long long first = 0;
	if (w.leader())
		first = reserve(c, w.count());
	first = w.from_leader(first);
	if (first == full)
		return false;
	((T *)c->data)[first + w.rank()] = value;
	return true;
}

// item_count is how many work items this launch has, of all that there are.
__device__ __forceinline__ unsigned long long item_count(const cursor *c, unsigned long long all)
{
	return c->todo ? c->todo_count : all;
}

// item is the number of the i-th work item of this launch: i when all are to be done, and
// what was noted as unfinished when a launch is repeated. What an item is, the kernel
// decides: an element, or a tile of them.
__device__ __forceinline__ unsigned long long item(const cursor *c, unsigned long long i)
{
	return c->todo ? c->todo[i] : i;
}

// note_unfinished notes that a work item has to be done again because its elements did
// not fit. One thread calls it for an item. What items has no room for is only counted.
__device__ __forceinline__ void note_unfinished(cursor *c, unsigned long long item)
{
	unsigned long long i = add_one(&c->unfinished);
	if (i < c->limit)
		c->items[i] = item;
}

// tile_appender appends what a block keeps of THREADS * PER_THREAD elements, at least
// 1,024 of them, with one atomic addition for the block and coalesced writes. The block
// is THREADS x 1 x 1, whole warps. T is plain data.
//
//	__shared__ cuvmm::tile_appender<float, 256, 16>::shared s;
//	float values[16];
//	unsigned keep = ...; // bit i: values[i] is kept
//	bool fit = cuvmm::tile_appender<float, 256, 16>::append(c, s, values, keep);
template <class T, int THREADS, int PER_THREAD> struct tile_appender {
	static_assert(THREADS % 32 == 0 && THREADS <= 1024, "a block is whole warps");
	static_assert(PER_THREAD <= 32, "keep has 32 bits");
	static_assert(THREADS * PER_THREAD >= 1024, "smaller tiles need too many atomic additions");

	struct shared {
		T kept[THREADS * PER_THREAD];
		unsigned counts[THREADS / 32]; // of each warp
		unsigned long long first;
	};

	// append must be called by all threads of the block, and returns the same to all. If
	// the elements of the block do not all fit, or if T has not the size of an element, it
	// returns false and none is written. s may be used again at once.
	static __device__ __forceinline__ bool append(cursor *c, shared &s, const T (&values)[PER_THREAD], unsigned keep)
	{
		if (!is_element<T>(c))
			return false;
		const unsigned all = 0xffffffffu;
		keep &= all >> (32 - PER_THREAD); // there are no other values
		unsigned below;
		asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below));

		// Each warp counts.
		unsigned count = __popc(keep);
#pragma unroll
		for (int d = 16; d > 0; d /= 2)
			count += __shfl_xor_sync(all, count, d);
		if (below == 0)
			s.counts[threadIdx.x / 32] = count;
		__syncthreads();

		unsigned at = 0, total = 0;
#pragma unroll
		for (unsigned w = 0; w < THREADS / 32; w++) {
			if (w == threadIdx.x / 32)
				at = total;
			total += s.counts[w];
		}

		// The addition takes its time, and meanwhile all threads pack what is kept. The lanes
		// of a warp take neighbouring words of shared memory, which are in different banks.
		unsigned long long first = 0;
		if (threadIdx.x == 0 && total > 0)
			first = atomicAdd(&c->reserved, (unsigned long long)total);
#pragma unroll
		for (int i = 0; i < PER_THREAD; i++) {
			bool kept = keep >> i & 1;
			unsigned lanes = __ballot_sync(all, kept);
			if (kept)
				s.kept[at + __popc(lanes & below)] = values[i];
			at += __popc(lanes);
		}
		if (threadIdx.x == 0)
			s.first = total > 0 ? fitted(c, first, total) : 0;
		__syncthreads();

		first = s.first;
		if (first == full)
			return false;
		T *out = (T *)c->data + first;
#pragma unroll 4
		for (unsigned i = threadIdx.x; i < total; i += THREADS)
			out[i] = s.kept[i];
		return true;
	}
};

} // namespace cuvmm

// atomicAggInc adds 1 and returns the old value, as atomicAdd(p, 1) does, with one atomic
// addition for all lanes of a warp that are together in the call with the same p. The
// lanes may pass different addresses. Where all lanes of a warp pass the same one, that is 1
// addition in place of 32.
__device__ __forceinline__ int atomicAggInc(int *p) { return cuvmm::add_one(p); }
__device__ __forceinline__ unsigned atomicAggInc(unsigned *p) { return cuvmm::add_one(p); }
__device__ __forceinline__ unsigned long long atomicAggInc(unsigned long long *p) { return cuvmm::add_one(p); }

#endif
