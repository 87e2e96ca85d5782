// Copies and fills, done before the call returns, and memory that is neither
// reserved nor mapped: plain and pinned. What plain memory is, memory of pools is too.
#include "fake.h"

#include <string.h>
#include <sys/mman.h>

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

// bytes_at is where the byte at p is stored, and how many follow it there. The caller
// has checked the address.
static unsigned char *bytes_at(CUdeviceptr p, size_t *rest) {
	struct span *s = span_at(p);
	*rest = s->size - (p - s->p);
	return s->bytes + (p - s->p);
}

CUresult cu_copy_in(CUdeviceptr dst, const void *src, size_t n, CUstream stream) {
	ENTER(copy_in, "dst=%#llx src=%p n=%zu stream=%p", dst, src, n, (void *)stream);
	struct device *dev;
	bool run;
	TRY(context(&dev));
	TRY(queue(dev, stream, &run));
	TRY(reach(dev, dst, n, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, false));
	if (n > 0 && src == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t done = 0, rest; run && done < n; done += rest) {
		unsigned char *to = bytes_at(dst + done, &rest);
		rest = least(rest, n - done);
		memcpy(to, (const char *)src + done, rest);
	}
	return CUDA_SUCCESS;
}

CUresult cu_copy_out(void *dst, CUdeviceptr src, size_t n, CUstream stream) {
	ENTER(copy_out, "dst=%p src=%#llx n=%zu stream=%p", dst, src, n, (void *)stream);
	struct device *dev;
	bool run;
	TRY(context(&dev));
	TRY(queue(dev, stream, &run));
	TRY(reach(dev, src, n, CU_MEM_ACCESS_FLAGS_PROT_READ, false));
	if (n > 0 && dst == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t done = 0, rest; run && done < n; done += rest) {
		unsigned char *from = bytes_at(src + done, &rest);
		rest = least(rest, n - done);
		memcpy((char *)dst + done, from, rest);
	}
	return CUDA_SUCCESS;
}

// side is one end of a copy between unified addresses. The driver takes an address
// that it does not know for pageable memory of the host.
static CUresult side(struct device *dev, CUdeviceptr p, size_t n, int need) {
	if (n > 0 && span_at(p) == NULL) {
		violate("%#llx is unknown: it would be taken for memory of the host", p);
		return CUDA_ERROR_INVALID_VALUE;
	}
	return reach(dev, p, n, need, false);
}

static void copy_bytes(CUdeviceptr dst, CUdeviceptr src, size_t n) {
	for (size_t done = 0, step; done < n; done += step) {
		size_t to_room, from_room;
		unsigned char *to = bytes_at(dst + done, &to_room);
		unsigned char *from = bytes_at(src + done, &from_room);
		step = least(least(to_room, from_room), n - done);
		memmove(to, from, step);
	}
}

CUresult cu_copy(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream) {
	ENTER(copy, "dst=%#llx src=%#llx n=%zu stream=%p", dst, src, n, (void *)stream);
	struct device *dev;
	bool run;
	TRY(context(&dev));
	TRY(queue(dev, stream, &run));
	TRY(side(dev, dst, n, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	TRY(side(dev, src, n, CU_MEM_ACCESS_FLAGS_PROT_READ));
	if (run)
		copy_bytes(dst, src, n);
	return CUDA_SUCCESS;
}

// peer_side is one end of a copy between devices: memory of that context's device, which
// the other need not reach.
static CUresult peer_side(CUcontext ctx, CUdeviceptr p, size_t n) {
	int dev = 0;
	while (dev < fake.devices && (ctx != (CUcontext)&fake.device[dev] || !fake.device[dev].alive))
		dev++;
	if (dev == fake.devices) {
		violate("%p is no context that is alive", (void *)ctx);
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	struct span *s = span_at(p);
	if (n > 0 && (s == NULL || s->device != dev)) {
		violate("%#llx is not on device %d", p, dev);
		return CUDA_ERROR_INVALID_VALUE;
	}
	return reach(&fake.device[dev], p, n, CU_MEM_ACCESS_FLAGS_PROT_READ, false);
}

CUresult cu_copy_peer(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n, CUstream stream) {
	ENTER(copy_peer, "dst=%#llx to=%p src=%#llx from=%p n=%zu stream=%p", dst, (void *)to, src, (void *)from, n, (void *)stream);
	struct device *dev;
	bool run;
	TRY(context(&dev));
	TRY(queue(dev, stream, &run));
	TRY(peer_side(to, dst, n));
	TRY(peer_side(from, src, n));
	if (run)
		copy_bytes(dst, src, n);
	return CUDA_SUCCESS;
}

// side_2d checks one end of a copy of rows: all of it from the first row to the end of
// the last, as measured.
static CUresult side_2d(struct device *dev, CUmemorytype type, const void *host, CUdeviceptr p, size_t pitch,
			const CUDA_MEMCPY2D *c, int need) {
	if (pitch < c->WidthInBytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CU_MEMORYTYPE_HOST)
		return host == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	size_t before, n;
	if (__builtin_mul_overflow(c->Height - 1, pitch, &before) || __builtin_add_overflow(before, c->WidthInBytes, &n)) {
		violate("%zu rows with a pitch of %zu overflow", c->Height, pitch);
		return CUDA_ERROR_INVALID_VALUE;
	}
	return side(dev, p, n, need);
}

// row_at is where a row begins, and how many of its bytes follow there.
static unsigned char *row_at(CUmemorytype type, const void *host, CUdeviceptr p, size_t *rest) {
	if (type != CU_MEMORYTYPE_HOST)
		return bytes_at(p, rest);
	*rest = SIZE_MAX;
	return (unsigned char *)(uintptr_t)host;
}

CUresult cu_copy_2d(const CUDA_MEMCPY2D *c, CUstream stream) {
	ENTER(copy_2d, "dst=%d:%#llx pitch=%zu src=%d:%#llx pitch=%zu width=%zu height=%zu stream=%p", (int)c->dstMemoryType,
	      c->dstMemoryType == CU_MEMORYTYPE_HOST ? (CUdeviceptr)c->dstHost : c->dstDevice, c->dstPitch, (int)c->srcMemoryType,
	      c->srcMemoryType == CU_MEMORYTYPE_HOST ? (CUdeviceptr)c->srcHost : c->srcDevice, c->srcPitch, c->WidthInBytes,
	      c->Height, (void *)stream);
	struct device *dev;
	bool run;
	TRY(context(&dev));
	TRY(queue(dev, stream, &run));
	if (c->srcXInBytes != 0 || c->srcY != 0 || c->dstXInBytes != 0 || c->dstY != 0 || c->srcArray != NULL || c->dstArray != NULL)
		violate("offsets and arrays are not known here");
	if (c->WidthInBytes == 0 || c->Height == 0)
		return CUDA_SUCCESS;
	TRY(side_2d(dev, c->dstMemoryType, c->dstHost, c->dstDevice, c->dstPitch, c, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	TRY(side_2d(dev, c->srcMemoryType, c->srcHost, c->srcDevice, c->srcPitch, c, CU_MEM_ACCESS_FLAGS_PROT_READ));
	for (size_t row = 0; run && row < c->Height; row++)
		for (size_t done = 0, step; done < c->WidthInBytes; done += step) {
			size_t to = row * c->dstPitch + done, from = row * c->srcPitch + done, to_room, from_room;
			unsigned char *dst = row_at(c->dstMemoryType, (char *)c->dstHost + to, c->dstDevice + to, &to_room);
			unsigned char *src = row_at(c->srcMemoryType, (const char *)c->srcHost + from, c->srcDevice + from, &from_room);
			step = least(least(to_room, from_room), c->WidthInBytes - done);
			memmove(dst, src, step);
		}
	return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr dst, const void *pattern, size_t width, size_t n, CUstream stream) {
	struct device *dev;
	bool run;
	TRY(context(&dev));
	TRY(queue(dev, stream, &run));
	if (dst % width != 0 || n > SIZE_MAX / width)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(reach(dev, dst, n * width, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, true));
	struct fill f = {.dst = dst, .width = width, .n = n};
	memcpy(f.pattern, pattern, width);
	if (!run) {
		struct stream *s;
		TRY(stream_of(dev, stream, &s));
		return add_node(&s->captured, NULL, &f, sizeof f);
	}
	run_fill(&f);
	return CUDA_SUCCESS;
}

void run_fill(const struct fill *f) {
	size_t n = f->n * f->width;
	for (size_t done = 0, rest; done < n; done += rest) {
		unsigned char *to = bytes_at(f->dst + done, &rest);
		rest = least(rest, n - done);
		memcpy(to, f->pattern, f->width);
		for (size_t have = f->width; have < rest; have *= 2)
			memcpy(to + have, to, least(have, rest - have));
	}
}

CUresult cu_fill8(CUdeviceptr dst, unsigned char pattern, size_t n, CUstream stream) {
	ENTER(fill8, "dst=%#llx pattern=%#x n=%zu stream=%p", dst, pattern, n, (void *)stream);
	return fill(dst, &pattern, sizeof pattern, n, stream);
}

CUresult cu_fill16(CUdeviceptr dst, unsigned short pattern, size_t n, CUstream stream) {
	ENTER(fill16, "dst=%#llx pattern=%#x n=%zu stream=%p", dst, pattern, n, (void *)stream);
	return fill(dst, &pattern, sizeof pattern, n, stream);
}

CUresult cu_fill32(CUdeviceptr dst, unsigned int pattern, size_t n, CUstream stream) {
	ENTER(fill32, "dst=%#llx pattern=%#x n=%zu stream=%p", dst, pattern, n, (void *)stream);
	return fill(dst, &pattern, sizeof pattern, n, stream);
}

// taken is how many addresses a plain piece takes: a granule more than it has
// bytes, so that no two pieces touch.
static size_t taken(size_t n) { return n + GRANULE; }

CUresult plain(int device, size_t n, struct pool *pool, CUdeviceptr *p) {
	if (n == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (n >= ADDRESSES)
		return CUDA_ERROR_OUT_OF_MEMORY;
	sweep();
	TRY(pool ? pool_take(pool, n) : charge(device, n));
	struct span s = {.kind = PLAIN, .p = no_access(taken(n)), .size = n, .bytes = host_pages(n), .device = device, .pool = pool};
	if (s.p != 0 && s.bytes != NULL && span_add(s) != NULL) {
		*p = s.p;
		return CUDA_SUCCESS;
	}
	if (s.p != 0)
		munmap((void *)s.p, taken(n));
	if (s.bytes != NULL)
		munmap(s.bytes, n);
	if (pool)
		pool_give(pool, n);
	else
		uncharge(device, n);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult foreign_plain(struct foreign *f, unsigned char *bytes, struct pool *pool, CUdeviceptr *p) {
	struct span s = {.kind = PLAIN, .p = no_access(taken(f->size)), .size = f->size, .bytes = bytes, .device = f->device, .pool = pool, .foreign = f};
	if (s.p == 0 || span_add(s) == NULL) {
		if (s.p != 0)
			munmap((void *)s.p, taken(s.size));
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*p = s.p;
	return CUDA_SUCCESS;
}

void close_plain(struct span *s) {
	munmap((void *)s->p, taken(s->size));
	if (s->pool)
		pool_give(s->pool, s->size);
	else
		s->foreign->opens = 0;
	span_remove((size_t)(s - fake.spans), 1);
}

CUresult give_back(CUdeviceptr p, enum kind kind) {
	struct span *s = span_at(p);
	if (s == NULL || s->kind != kind || s->p != p)
		return CUDA_ERROR_INVALID_VALUE;
	if (s->foreign != NULL) {
		close_plain(s);
		return CUDA_SUCCESS;
	}
	munmap(s->bytes, s->size);
	if (kind == PLAIN) {
		munmap((void *)p, taken(s->size));
		if (s->pool)
			pool_give(s->pool, s->size);
		else
			uncharge(s->device, s->size);
	}
	span_remove((size_t)(s - fake.spans), 1);
	return CUDA_SUCCESS;
}

void reset_plain(void) {
	for (size_t i = fake.span_count; i-- > 0;)
		if (fake.spans[i].kind != MAPPED)
			give_back(fake.spans[i].p, fake.spans[i].kind);
}

void plain_gone(int dev) {
	for (size_t i = fake.span_count; i-- > 0;)
		if (fake.spans[i].kind != MAPPED && fake.spans[i].device == dev)
			give_back(fake.spans[i].p, fake.spans[i].kind);
}

// free_in frees memory also where the context is lost, and returns that error.
static CUresult free_in(CUdeviceptr p, enum kind kind) {
	struct device *dev;
	CUresult lost = context(&dev);
	if (lost != CUDA_SUCCESS && lost != CUDA_ERROR_ILLEGAL_ADDRESS)
		return lost;
	TRY(unsafe_in_capture());
	struct span *s = span_at(p);
	if (s != NULL && s->foreign != NULL && s->pool == NULL)
		return CUDA_ERROR_INVALID_VALUE; // it was opened, and can only be closed
	TRY(give_back(p, kind));
	return lost;
}

CUresult cu_plain_alloc(CUdeviceptr *p, size_t n) {
	ENTER(plain_alloc, "n=%zu", n);
	struct device *dev;
	TRY(context(&dev));
	TRY(unsafe_in_capture());
	return plain((int)(dev - fake.device), n, NULL, p);
}

CUresult cu_plain_free(CUdeviceptr p) {
	ENTER(plain_free, "p=%#llx", p);
	return free_in(p, PLAIN);
}

CUresult cu_host_alloc(void **p, size_t n, unsigned int flags) {
	ENTER(host_alloc, "n=%zu flags=%u", n, flags);
	struct device *dev;
	TRY(context(&dev));
	TRY(unsafe_in_capture());
	if (flags & ~(unsigned int)CU_MEMHOSTALLOC_PORTABLE) {
		violate("flags are %u", flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (n == 0)
		return CUDA_ERROR_INVALID_VALUE;
	unsigned char *bytes = host_pages(n);
	if (bytes == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct span s = {.kind = PINNED, .p = (CUdeviceptr)bytes, .size = n, .bytes = bytes, .device = (int)(dev - fake.device)};
	if (span_add(s) == NULL) {
		munmap(bytes, n);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*p = bytes;
	return CUDA_SUCCESS;
}

CUresult cu_host_free(void *p) {
	ENTER(host_free, "p=%p", p);
	return free_in((CUdeviceptr)p, PINNED);
}
