// Addresses: reserve, map, set access, and where in memory an address lies.
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

CUdeviceptr no_access(size_t n) {
	void *p = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p == MAP_FAILED ? 0 : (CUdeviceptr)p;
}

size_t span_index(CUdeviceptr p) {
	size_t low = 0, high = fake.span_count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (fake.spans[middle].p + fake.spans[middle].size <= p)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct span *span_at(CUdeviceptr p) {
	size_t i = span_index(p);
	return i < fake.span_count && fake.spans[i].p <= p ? &fake.spans[i] : NULL;
}

struct span *span_add(struct span s) {
	if (fake.span_count == fake.span_room) {
		size_t capacity = fake.span_room * 2 + 64;
		struct span *grown = realloc(fake.spans, capacity * sizeof *grown);
		if (grown == NULL)
			return NULL;
		fake.spans = grown;
		fake.span_room = capacity;
	}
	size_t i = span_index(s.p);
	memmove(&fake.spans[i + 1], &fake.spans[i], (fake.span_count - i) * sizeof s);
	fake.spans[i] = s;
	fake.span_count++;
	return &fake.spans[i];
}

void span_remove(size_t first, size_t n) {
	memmove(&fake.spans[first], &fake.spans[first + n], (fake.span_count - first - n) * sizeof *fake.spans);
	fake.span_count -= n;
}

struct reservation *reservation_of(CUdeviceptr p, size_t size) {
	struct reservation *r = fake.reservations;
	while (r != NULL && (p < r->p || p - r->p >= r->size || size > r->size - (p - r->p)))
		r = r->next;
	return r;
}

CUresult cu_mem_reserve(CUdeviceptr *p, size_t size, size_t align, CUdeviceptr addr, unsigned long long flags) {
	ENTER(mem_reserve, "size=%zu align=%zu addr=%#llx flags=%llu", size, align, addr, flags);
	if (flags != 0) {
		violate("flags are %llu", flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (size == 0 || size % GRANULE != 0 || (align & (align - 1)) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (align < GRANULE)
		align = GRANULE;
	if (size >= ADDRESSES || align >= ADDRESSES)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct reservation *r = malloc(sizeof *r);
	CUdeviceptr got = no_access(size + align);
	if (r == NULL || got == 0) {
		free(r);
		if (got != 0)
			munmap((void *)got, size + align);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUdeviceptr start = (got + align - 1) & ~((CUdeviceptr)align - 1);
	size_t before = start - got, after = align - before;
	if (before > 0)
		munmap((void *)got, before);
	if (after > 0)
		munmap((void *)(start + size), after);
	*r = (struct reservation){fake.reservations, start, size};
	fake.reservations = r;
	*p = start;
	return CUDA_SUCCESS;
}

CUresult cu_mem_address_free(CUdeviceptr p, size_t size) {
	ENTER(mem_address_free, "p=%#llx size=%zu", p, size);
	struct reservation **at = &fake.reservations;
	while (*at != NULL && ((*at)->p != p || (*at)->size != size))
		at = &(*at)->next;
	struct reservation *r = *at;
	if (r == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	size_t i = span_index(p);
	if (i < fake.span_count && fake.spans[i].p < p + size)
		return CUDA_ERROR_INVALID_VALUE;
	*at = r->next;
	munmap((void *)p, size);
	free(r);
	return CUDA_SUCCESS;
}

CUresult cu_mem_map(CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags) {
	ENTER(mem_map, "p=%#llx size=%zu offset=%zu handle=%#llx flags=%llu", p, size, offset, handle, flags);
	if (flags != 0) {
		violate("flags are %llu", flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct handle *h = handle_of(handle);
	if (h == NULL || p % GRANULE != 0 || size == 0 || size % GRANULE != 0)
		return CUDA_ERROR_INVALID_VALUE;
	struct chunk *c = h->chunk;
	if (offset != 0 || size != c->size)
		return CUDA_ERROR_NOT_SUPPORTED;
	struct reservation *r = reservation_of(p, size);
	size_t i = span_index(p);
	if (r == NULL || (i < fake.span_count && fake.spans[i].p < p + size))
		return CUDA_ERROR_INVALID_VALUE;
	struct span s = {.kind = MAPPED, .p = p, .size = size, .bytes = c->bytes, .device = c->home.id, .chunk = c, .within = r};
	if (span_add(s) == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	chunk_ref(c);
	return CUDA_SUCCESS;
}

// whole counts the mappings that [p, p+size) consists of. It is 0 if the span begins
// or ends inside one, has a hole, or leaves its reservation.
static size_t whole(CUdeviceptr p, size_t size, size_t *first) {
	struct reservation *r = reservation_of(p, size);
	if (r == NULL || size == 0)
		return 0;
	*first = span_index(p);
	CUdeviceptr at = p;
	size_t n = 0;
	for (; at < p + size; n++) {
		if (*first + n == fake.span_count || fake.spans[*first + n].p != at)
			return 0;
		at += fake.spans[*first + n].size;
	}
	return at == p + size ? n : 0;
}

CUresult cu_mem_unmap(CUdeviceptr p, size_t size) {
	ENTER(mem_unmap, "p=%#llx size=%zu", p, size);
	size_t first, n = whole(p, size, &first);
	if (n == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = first; i < first + n; i++)
		chunk_unref(fake.spans[i].chunk);
	span_remove(first, n);
	return CUDA_SUCCESS;
}

// may reports whether that location may have that access to a mapping.
static CUresult may(const struct span *s, const CUmemAccessDesc *d) {
	switch ((int)d->flags) {
	case CU_MEM_ACCESS_FLAGS_PROT_NONE:
	case CU_MEM_ACCESS_FLAGS_PROT_READ:
	case CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
		break;
	default:
		violate("unknown access %d", d->flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	switch ((int)d->location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return known_device(d->location.id);
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return s->chunk->home.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
	}
	violate("unknown kind of location %d", d->location.type);
	return CUDA_ERROR_INVALID_VALUE;
}

static unsigned char *access_of(struct span *s, const CUmemLocation *l) {
	return l->type == CU_MEM_LOCATION_TYPE_DEVICE ? &s->access[l->id] : &s->host_access;
}

static void describe(char *text, size_t capacity, const CUmemAccessDesc *desc, size_t count) {
	size_t n = 0;
	text[0] = 0;
	for (size_t i = 0; desc != NULL && i < count && n < capacity; i++)
		n += (size_t)snprintf(text + n, capacity - n, " %d:%d=%d", desc[i].location.type, desc[i].location.id, desc[i].flags);
}

CUresult cu_mem_set_access(CUdeviceptr p, size_t size, const CUmemAccessDesc *desc, size_t count) {
	char text[256];
	describe(text, sizeof text, desc, count);
	ENTER(mem_set_access, "p=%#llx size=%zu count=%zu%s", p, size, count, text);
	size_t first, n = whole(p, size, &first);
	if (n == 0 || desc == NULL || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = first; i < first + n; i++)
		for (size_t j = 0; j < count; j++)
			TRY(may(&fake.spans[i], &desc[j]));
	for (size_t i = first; i < first + n; i++)
		for (size_t j = 0; j < count; j++)
			*access_of(&fake.spans[i], &desc[j].location) = (unsigned char)desc[j].flags;
	return CUDA_SUCCESS;
}

CUresult cu_mem_get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr p) {
	ENTER(mem_get_access, "location=%d:%d p=%#llx", location->type, location->id, p);
	struct span *s = span_at(p);
	if (s == NULL || s->kind != MAPPED)
		return CUDA_ERROR_INVALID_VALUE;
	CUmemAccessDesc asked = {*location, CU_MEM_ACCESS_FLAGS_PROT_NONE};
	TRY(may(s, &asked));
	*flags = *access_of(s, location);
	return CUDA_SUCCESS;
}

CUresult reach(struct device *dev, CUdeviceptr p, size_t n, int need, bool fill) {
	int ordinal = (int)(dev - fake.device);
	while (n > 0) {
		struct span *s = span_at(p);
		if (s == NULL)
			return CUDA_ERROR_INVALID_VALUE;
		if (s->kind == MAPPED && (s->access[ordinal] & need) != need)
			return CUDA_ERROR_INVALID_VALUE;
		if (s->pool != NULL && (s->pool->access[ordinal] & need) != need)
			return CUDA_ERROR_INVALID_VALUE;
		if (s->kind == PLAIN && s->pool == NULL && s->foreign == NULL && fill && s->device != ordinal && !(dev->peers & (1u << s->device)))
			return CUDA_ERROR_INVALID_VALUE; // what was opened needs no peer access, as measured
		size_t capacity = s->size - (p - s->p);
		if (n <= capacity)
			return CUDA_SUCCESS;
		if (s->kind != MAPPED || reservation_of(p, capacity + 1) == NULL)
			return CUDA_ERROR_INVALID_VALUE;
		p += capacity;
		n -= capacity;
	}
	return CUDA_SUCCESS;
}

CUresult cu_pointer_attribute(void *value, CUpointer_attribute attribute, CUdeviceptr p) {
	enum { HOST = 1, DEVICE = 2 }; // CUmemorytype
	ENTER(pointer_attribute, "attribute=%d p=%#llx", attribute, p);
	if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) { // the ordinal needs no context, as measured
		struct device *dev;
		TRY(context(&dev));
	}
	struct span *s = span_at(p);
	if (s == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	bool host = s->kind == PINNED || (s->kind == MAPPED && s->chunk->home.type == CU_MEM_LOCATION_TYPE_HOST_NUMA);
	switch ((int)attribute) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned int *)value = host ? HOST : DEVICE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)value = s->device;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)value = s->kind == MAPPED ? s->within->p : s->p;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(CUmemoryPool *)value = (CUmemoryPool)s->pool;
		return CUDA_SUCCESS;
	}
	violate("attribute %d is not known here", attribute);
	return CUDA_ERROR_INVALID_VALUE;
}
