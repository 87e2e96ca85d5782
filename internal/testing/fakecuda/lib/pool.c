// Pools of stream-ordered memory. Work is done when the call that queues it returns, so a
// free is too.
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define UNIT 512 // memory of a pool is counted in these

static unsigned long long rounded(unsigned long long n) { return (n + UNIT - 1) / UNIT * UNIT; }

static unsigned long long most(unsigned long long a, unsigned long long b) { return a > b ? a : b; }

// keep releases what is not in use beyond n bytes.
static void keep(struct pool *p, unsigned long long n) {
	unsigned long long to = most(p->used, n);
	if (p->reserved <= to)
		return;
	if (p->from == NULL)
		uncharge(p->device, p->reserved - to);
	p->reserved = to;
}

// Default pools have numbers that no other pool ever has.
static struct pool defaults[MAX_DEVICES];

static void forget_pool(struct pool *p) {
	struct pool **at = &fake.pools;
	keep(p, 0);
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	if (p->fd >= 0)
		close(p->fd);
	if (p < defaults || p >= defaults + MAX_DEVICES)
		free(p);
}

CUresult pool_take(struct pool *p, size_t n) {
	unsigned long long used = p->used + rounded(n);
	if (used > p->reserved) {
		if (p->max != 0 && used > p->max)
			return CUDA_ERROR_OUT_OF_MEMORY;
		if (p->from == NULL)
			TRY(charge(p->device, used - p->reserved));
		p->reserved = used;
	}
	p->used = used;
	p->used_high = most(p->used_high, used);
	p->reserved_high = most(p->reserved_high, p->reserved);
	return CUDA_SUCCESS;
}

void pool_give(struct pool *p, size_t n) {
	p->used -= rounded(n);
	if (p->from != NULL)
		keep(p, 0);
	if (p->destroyed && p->used == 0)
		forget_pool(p);
}

void release_pools(struct device *dev) {
	for (struct pool *p = fake.pools; p != NULL; p = p->next)
		if (&fake.device[p->device] == dev)
			keep(p, p->threshold);
}

static struct pool *new_pool(struct pool *p, int dev, unsigned long long max) {
	if (p == NULL)
		return NULL;
	*p = (struct pool){.next = fake.pools, .device = dev, .max = max, .reuse = {1, 1, 1}, .fd = -1, .terminal = -1};
	p->access[dev] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	fake.pools = p;
	return p;
}

CUresult new_import(struct foreign *f, CUmemoryPool *pool) {
	struct pool *p = new_pool(malloc(sizeof *p), f->device, 0);
	if (p == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	p->from = f;
	*pool = (CUmemoryPool)p;
	return CUDA_SUCCESS;
}

// default_pool finds a device's default pool, and makes it.
static CUresult default_pool(CUdevice dev, struct pool **out) {
	TRY(known_device(dev));
	struct device *d = &fake.device[dev];
	if (d->default_pool == NULL)
		d->default_pool = new_pool(&defaults[dev], dev, 0);
	*out = d->default_pool;
	return CUDA_SUCCESS;
}

static CUresult current_pool(CUdevice dev, struct pool **out) {
	TRY(default_pool(dev, out));
	if (fake.device[dev].current_pool != NULL)
		*out = fake.device[dev].current_pool;
	return CUDA_SUCCESS;
}

CUresult pool_of(CUmemoryPool pool, struct pool **out) {
	*out = fake.pools;
	while (*out != NULL && (*out != (struct pool *)pool || (*out)->destroyed))
		*out = (*out)->next;
	if (*out == NULL) {
		violate("%p is no pool", (void *)pool);
		return CUDA_ERROR_INVALID_VALUE;
	}
	return fake.lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

CUresult cu_pool_default(CUmemoryPool *pool, CUdevice dev) {
	ENTER(pool_default, "dev=%d", dev);
	return default_pool(dev, (struct pool **)pool);
}

CUresult cu_pool_current(CUmemoryPool *pool, CUdevice dev) {
	ENTER(pool_current, "dev=%d", dev);
	return current_pool(dev, (struct pool **)pool);
}

CUresult cu_pool_set_current(CUdevice dev, CUmemoryPool pool) {
	ENTER(pool_set_current, "dev=%d pool=%p", dev, (void *)pool);
	struct pool *p;
	TRY(known_device(dev));
	TRY(pool_of(pool, &p));
	if (p->from != NULL)
		violate("the pool was imported");
	if (p->device != dev || p->from != NULL)
		return CUDA_ERROR_INVALID_VALUE;
	fake.device[dev].current_pool = p;
	return CUDA_SUCCESS;
}

static void describe(char *text, size_t n, const CUmemPoolProps *p) {
	snprintf(text, n, "type=%d share=%d location=%d:%d max=%zu usage=%u", p->allocType, p->handleTypes,
	         p->location.type, p->location.id, p->maxSize, p->usage);
}

// proper checks what a pool is to be made with.
static CUresult proper(const CUmemPoolProps *p) {
	bool zero = p->win32SecurityAttributes == NULL && p->usage == 0 && (p->maxSize == 0 || fake_version >= 12020);
	for (size_t i = 0; i < sizeof p->reserved; i++)
		zero = zero && p->reserved[i] == 0;
	if (!zero || p->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || p->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
		violate("the type is not pinned, the location is no device, or a reserved field is not zero");
		return CUDA_ERROR_INVALID_VALUE;
	}
	TRY(known_device(p->location.id));
	if (p->handleTypes != CU_MEM_HANDLE_TYPE_NONE && fake_version < 11030) {
		violate("a driver of version %d shares no pool", fake_version);
		return CUDA_ERROR_INVALID_VALUE;
	}
	return (p->handleTypes & CU_MEM_HANDLE_TYPE_FABRIC) && !fake_fabric ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

CUresult cu_pool_create(CUmemoryPool *pool, const CUmemPoolProps *props) {
	char text[256];
	describe(text, sizeof text, props);
	ENTER(pool_create, "%s", text);
	if (fake.lost)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	TRY(proper(props));
	TRY(unsafe_in_capture());
	struct pool *p = new_pool(malloc(sizeof *p), props->location.id, props->maxSize);
	if (p != NULL)
		p->share = (int)props->handleTypes;
	*pool = (CUmemoryPool)p;
	return p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cu_pool_destroy(CUmemoryPool pool) {
	ENTER(pool_destroy, "pool=%p", (void *)pool);
	struct pool *p;
	CUresult lost = pool_of(pool, &p);
	if (lost != CUDA_SUCCESS && lost != CUDA_ERROR_ILLEGAL_ADDRESS)
		return lost;
	struct device *d = &fake.device[p->device];
	if (p == d->default_pool || (p->from != NULL && p->used > 0 && lost == CUDA_SUCCESS))
		return CUDA_ERROR_INVALID_VALUE; // of an imported pool all memory must have been freed, as measured
	TRY(unsafe_in_capture());
	if (d->current_pool == p)
		d->current_pool = NULL;
	p->destroyed = true;
	if (p->used == 0)
		forget_pool(p);
	return lost;
}

// in_stream is for memory of a pool during a capture. It would be a node of the graph,
// which is not modelled.
static CUresult in_stream(struct device **dev, CUstream stream) {
	bool run;
	TRY(context(dev));
	TRY(queue(*dev, stream, &run));
	if (!run)
		violate("memory of the pool is not modelled in a capture");
	return run ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult cu_pool_alloc(CUdeviceptr *p, size_t n, CUstream stream) {
	ENTER(pool_alloc, "n=%zu stream=%p", n, (void *)stream);
	struct device *dev;
	struct pool *pool;
	TRY(in_stream(&dev, stream));
	TRY(current_pool((CUdevice)(dev - fake.device), &pool));
	return plain(pool->device, n, pool, p);
}

CUresult cu_pool_alloc_from(CUdeviceptr *p, size_t n, CUmemoryPool from, CUstream stream) {
	ENTER(pool_alloc_from, "n=%zu pool=%p stream=%p", n, (void *)from, (void *)stream);
	struct device *dev;
	struct pool *pool;
	TRY(in_stream(&dev, stream));
	TRY(pool_of(from, &pool));
	if (pool->from != NULL) {
		violate("the pool was imported");
		return CUDA_ERROR_INVALID_VALUE;
	}
	return plain(pool->device, n, pool, p);
}

CUresult cu_pool_free(CUdeviceptr p, CUstream stream) {
	ENTER(pool_free, "p=%#llx stream=%p", p, (void *)stream);
	struct device *dev;
	TRY(in_stream(&dev, stream));
	return give_back(p, PLAIN);
}

// own_pool finds a pool that was not imported: of one that was, no attribute can be read or
// set, and no trim made, as measured.
static CUresult own_pool(CUmemoryPool pool, struct pool **out) {
	TRY(pool_of(pool, out));
	return (*out)->from != NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cu_pool_trim(CUmemoryPool pool, size_t n) {
	ENTER(pool_trim, "pool=%p keep=%zu", (void *)pool, n);
	struct pool *p;
	TRY(own_pool(pool, &p));
	TRY(unsafe_in_capture());
	keep(p, n);
	return CUDA_SUCCESS;
}

// bytes_of is where an attribute is stored that is no int.
static unsigned long long *bytes_of(struct pool *p, CUmemPool_attribute attribute) {
	switch ((int)attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		return &p->threshold;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		return &p->reserved;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		return &p->reserved_high;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		return &p->used;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return &p->used_high;
	}
	violate("attribute %d is not known here", attribute);
	return NULL;
}

static bool is_int(CUmemPool_attribute attribute) {
	return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
	       attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

CUresult cu_pool_get(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
	ENTER(pool_get, "pool=%p attribute=%d", (void *)pool, attribute);
	struct pool *p;
	TRY(own_pool(pool, &p));
	if (is_int(attribute)) {
		*(int *)value = p->reuse[attribute - 1];
		return CUDA_SUCCESS;
	}
	unsigned long long *at = bytes_of(p, attribute);
	if (at == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*(cuuint64_t *)value = *at;
	return CUDA_SUCCESS;
}

CUresult cu_pool_set(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
	unsigned long long v = is_int(attribute) ? (unsigned long long)*(int *)value : *(cuuint64_t *)value;
	ENTER(pool_set, "pool=%p attribute=%d value=%llu", (void *)pool, attribute, v);
	struct pool *p;
	TRY(own_pool(pool, &p));
	if (is_int(attribute)) {
		if (v > 1)
			violate("%llu is neither 0 nor 1", v);
		p->reuse[attribute - 1] = v != 0;
		return CUDA_SUCCESS;
	}
	unsigned long long *at = bytes_of(p, attribute);
	if (at == NULL || at == &p->reserved || at == &p->used || (at != &p->threshold && v != 0)) {
		violate("attribute %d cannot be set to %llu", attribute, v);
		return CUDA_ERROR_INVALID_VALUE;
	}
	*at = at == &p->reserved_high ? p->reserved : at == &p->used_high ? p->used : v;
	return CUDA_SUCCESS;
}

CUresult cu_pool_set_access(CUmemoryPool pool, const CUmemAccessDesc *desc, size_t count) {
	char text[256] = "";
	for (size_t i = 0, n = 0; i < count && n < sizeof text; i++)
		n += (size_t)snprintf(text + n, sizeof text - n, " %d:%d=%d", desc[i].location.type, desc[i].location.id, desc[i].flags);
	ENTER(pool_set_access, "pool=%p count=%zu%s", (void *)pool, count, text);
	struct pool *p;
	TRY(pool_of(pool, &p));
	for (size_t i = 0; i < count; i++) {
		if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			return CUDA_ERROR_INVALID_VALUE;
		int id = desc[i].location.id;
		TRY(known_device(id));
		if (id == p->device && desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
			return CUDA_ERROR_INVALID_VALUE;
		if (id != p->device && fake.device[id].link[p->device] == FAKE_NO_PATH)
			return CUDA_ERROR_INVALID_DEVICE;
	}
	for (size_t i = 0; i < count; i++)
		p->access[desc[i].location.id] = (unsigned char)desc[i].flags;
	return CUDA_SUCCESS;
}

CUresult cu_pool_get_access(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location) {
	ENTER(pool_get_access, "pool=%p location=%d:%d", (void *)pool, location->type, location->id);
	struct pool *p;
	TRY(pool_of(pool, &p));
	if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(known_device(location->id));
	*flags = (CUmemAccess_flags)p->access[location->id];
	return CUDA_SUCCESS;
}

void count_pools(struct fake_count *out) {
	for (struct pool *p = fake.pools; p != NULL; p = p->next)
		out->pools += p != fake.device[p->device].default_pool;
}

// pools_gone is for a reset: the plain memory has gone before.
void pools_gone(int dev) {
	for (struct pool *p = fake.pools; p != NULL;) {
		struct pool *next = p->next;
		if (p->device == dev && p != fake.device[dev].default_pool)
			forget_pool(p);
		p = next;
	}
	fake.device[dev].current_pool = NULL;
}

void reset_pools(void) {
	while (fake.pools != NULL)
		forget_pool(fake.pools);
}
