#include "internal.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static const struct cuvmm_symbol symbols[] = {
#define NEED(field, symbol, params) {symbol, offsetof(struct cuvmm_api, field), 1},
#define MAY(field, symbol, params) {symbol, offsetof(struct cuvmm_api, field), 0},
	CUVMM_SYMBOLS(NEED, MAY)
	{0},
};

static cloop_took start(struct cloop *l) {
	TRY(l, init, 0);
	TRY(l, primary_retain, &l->ctx, l->dev);
	TRY(l, ctx_push, l->ctx);
	TRY(l, stream_create, &l->stream, CU_STREAM_NON_BLOCKING);
	TRY(l, ctx_pop, &l->ctx);
	return (cloop_took){0};
}

cloop_took cloop_open(struct cloop **out, const char *path, int dev) {
	struct cloop *l = calloc(1, sizeof *l);
	if (l == NULL)
		return (cloop_took){.call = "calloc", .r = -1};
	*l = (struct cloop){
		.lib = dlopen(path, RTLD_NOW | RTLD_LOCAL),
		.dev = dev,
		.prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, dev}},
		.access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, dev}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
	};
	cloop_took t = {.call = "dlopen", .r = -1};
	if (l->lib != NULL && (t.call = cuvmm_bind(l->lib, symbols, &l->api)) == NULL)
		t = start(l);
	if (t.call != NULL) {
		if (l->lib != NULL)
			dlclose(l->lib);
		free(l);
		return t;
	}
	*out = l;
	return t;
}

cloop_took cloop_close(struct cloop *l) {
	TRY(l, ctx_push, l->ctx);
	TRY(l, stream_destroy, l->stream);
	TRY(l, ctx_pop, &l->ctx);
	TRY(l, primary_release, l->dev);
	dlclose(l->lib);
	free(l);
	return (cloop_took){0};
}

cloop_took cloop_reserve(struct cloop *l, size_t size, size_t align) {
	CUdeviceptr p;
	TRY(l, mem_reserve, &p, size, align, 0, 0);
	return (cloop_took){.v = p};
}

cloop_took cloop_address_free(struct cloop *l, CUdeviceptr p, size_t size) {
	TRY(l, mem_address_free, p, size);
	return (cloop_took){0};
}

cloop_took cloop_create(struct cloop *l, size_t size) {
	CUmemGenericAllocationHandle h;
	TRY(l, mem_create, &h, size, &l->prop, 0);
	return (cloop_took){.v = h};
}

cloop_took cloop_create_shared(struct cloop *l, size_t size) {
	CUmemAllocationProp prop = l->prop;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	CUmemGenericAllocationHandle h;
	TRY(l, mem_create, &h, size, &prop, 0);
	return (cloop_took){.v = h};
}

cloop_took cloop_export(struct cloop *l, CUmemGenericAllocationHandle h) {
	int fd;
	TRY(l, mem_export, &fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	return (cloop_took){.v = (unsigned long long)fd};
}

cloop_took cloop_release(struct cloop *l, CUmemGenericAllocationHandle h) {
	TRY(l, mem_release, h);
	return (cloop_took){0};
}

cloop_took cloop_range_start(struct cloop *l, CUdeviceptr p) {
	CUdeviceptr first;
	TRY(l, ctx_push, l->ctx);
	CUresult r = l->api.pointer_attribute(&first, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p);
	TRY(l, ctx_pop, &l->ctx);
	return r == CUDA_SUCCESS ? (cloop_took){.v = first} : (cloop_took){.call = "pointer_attribute", .r = (int)r};
}

cloop_took cloop_unmap(struct cloop *l, CUdeviceptr p, size_t size) {
	TRY(l, mem_unmap, p, size);
	return (cloop_took){0};
}

cloop_took cloop_threshold(struct cloop *l, unsigned long long n) {
	CUmemoryPool pool;
	cuuint64_t value = n;
	if (l->api.pool_alloc == NULL || l->api.pool_free == NULL || l->api.pool_default == NULL || l->api.pool_set == NULL)
		return (cloop_took){.call = "pool_default", .r = CUDA_ERROR_NOT_SUPPORTED};
	TRY(l, pool_default, &pool, l->dev);
	TRY(l, pool_set, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
	TRY(l, ctx_push, l->ctx);
	TRY(l, ctx_sync); // memory above the threshold is released at the next wait
	TRY(l, ctx_pop, &l->ctx);
	return (cloop_took){0};
}

cloop_took cloop_map(struct cloop *l, CUdeviceptr p, size_t size, CUmemGenericAllocationHandle h) {
	long long from = now();
	TRY(l, mem_map, p, size, 0, h, 0);
	TRY(l, mem_set_access, p, size, &l->access, 1);
	return (cloop_took){.ns = now() - from};
}

cloop_took cloop_grow(struct cloop *l, CUdeviceptr p, const unsigned long long *sizes, const int *counts, int steps,
                      CUmemGenericAllocationHandle *made, int kept) {
	long long from = now();
	for (int i = 0; i < steps; i++) {
		CUdeviceptr end = p;
		for (int j = 0; j < counts[i] && !kept; j++)
			TRY(l, mem_create, &made[j], sizes[j], &l->prop, 0);
		for (int j = 0; j < counts[i]; j++) {
			TRY(l, mem_map, end, sizes[j], 0, made[j], 0);
			end += sizes[j];
		}
		TRY(l, mem_set_access, p, end - p, &l->access, 1);
		p = end;
		sizes += counts[i];
		made += counts[i];
	}
	return (cloop_took){.ns = now() - from};
}

cloop_took cloop_attach(struct cloop *l, CUdeviceptr p, const unsigned long long *sizes, int n, const int *fds,
                        const CUmemGenericAllocationHandle *shared, CUmemGenericAllocationHandle *made) {
	const CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	long long from = now();
	CUdeviceptr end = p;
	for (int i = 0; i < n; i++) {
		int fd = shared ? -1 : fds[i];
		if (shared)
			TRY(l, mem_export, &fd, shared[i], type, 0);
		TRY(l, mem_import, &made[i], (void *)(intptr_t)fd, type);
		if (shared)
			close(fd);
		TRY(l, mem_map, end, sizes[i], 0, made[i], 0);
		end += sizes[i];
	}
	TRY(l, mem_set_access, p, end - p, &l->access, 1);
	return (cloop_took){.ns = now() - from};
}

// move allocates size bytes, copies the old bytes at *p to them, and behind those what is at more, if it is
// not NULL. Then it frees the old bytes. It waits, so that any stream may use the memory, as it may use mapped
// memory.
static cloop_took move(struct cloop *l, CUdeviceptr *p, size_t old, size_t size, const void *more, int pool) {
	CUdeviceptr from = *p;
	if (pool)
		TRY(l, pool_alloc, p, size, l->stream);
	else
		TRY(l, plain_alloc, p, size);
	if (old > 0)
		TRY(l, copy, *p, from, old, l->stream);
	if (more != NULL)
		TRY(l, copy_in, *p + old, more, size - old, l->stream);
	if (old > 0 && pool)
		TRY(l, pool_free, from, l->stream);
	TRY(l, stream_sync, l->stream);
	if (old > 0 && !pool)
		TRY(l, plain_free, from);
	return (cloop_took){0};
}

cloop_took cloop_realloc(struct cloop *l, const unsigned long long *sizes, int steps, int pool) {
	CUdeviceptr p = 0;
	size_t old = 0;
	TRY(l, ctx_push, l->ctx);
	long long from = now();
	for (int i = 0; i < steps; i++) {
		cloop_took t = move(l, &p, old, sizes[i], NULL, pool);
		if (t.call != NULL)
			return t;
		old = sizes[i];
	}
	long long ns = now() - from;
	if (pool)
		TRY(l, pool_free, p, l->stream);
	else
		TRY(l, plain_free, p);
	TRY(l, stream_sync, l->stream);
	TRY(l, ctx_pop, &l->ctx);
	return (cloop_took){.ns = ns};
}

cloop_took cloop_expand(struct cloop *l, unsigned long long *p, size_t old, const void *more, size_t n) {
	CUdeviceptr at = *p;
	TRY(l, ctx_push, l->ctx);
	long long from = now();
	cloop_took t = move(l, &at, old, old + n, more, 0);
	if (t.call != NULL)
		return t;
	t.ns = now() - from;
	TRY(l, ctx_pop, &l->ctx);
	*p = at;
	return t;
}

cloop_took cloop_plain_free(struct cloop *l, CUdeviceptr p) {
	TRY(l, ctx_push, l->ctx);
	TRY(l, plain_free, p);
	TRY(l, ctx_pop, &l->ctx);
	return (cloop_took){0};
}

cloop_took cloop_pool_pairs(struct cloop *l, const unsigned long long *sizes, const unsigned int *slots, int n, unsigned long long *live) {
	TRY(l, ctx_push, l->ctx);
	long long from = now();
	for (int i = 0; i < n; i++) {
		CUdeviceptr p = live[slots[i]];
		if (p != 0)
			TRY(l, pool_free, p, l->stream);
		TRY(l, pool_alloc, &p, sizes[i], l->stream);
		live[slots[i]] = p;
	}
	long long ns = now() - from;
	TRY(l, ctx_pop, &l->ctx);
	return (cloop_took){.ns = ns};
}

cloop_took cloop_pool_free(struct cloop *l, const unsigned long long *live, int n) {
	TRY(l, ctx_push, l->ctx);
	for (int i = 0; i < n; i++)
		if (live[i] != 0)
			TRY(l, pool_free, live[i], l->stream);
	TRY(l, stream_sync, l->stream);
	TRY(l, ctx_pop, &l->ctx);
	return (cloop_took){0};
}

cloop_took cloop_launch(struct cloop *l, CUfunction f, unsigned int grid, unsigned int block, const unsigned char *args, size_t size, int n) {
	void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)args, (void *)CU_LAUNCH_PARAM_BUFFER_SIZE, &size, NULL};
	unsigned long long id;
	long long from = now();
	for (int i = 0; i < n; i++) {
		TRY(l, ctx_push, l->ctx);
		if (l->api.ctx_id != NULL)
			TRY(l, ctx_id, l->ctx, &id);
		TRY(l, launch, f, grid, 1, 1, block, 1, 1, 0, l->stream, NULL, extra);
		TRY(l, ctx_pop, &l->ctx);
	}
	return (cloop_took){.ns = now() - from};
}

int cloop_launch_one(struct cloop *l, CUfunction f, unsigned int grid, unsigned int block, const unsigned char *args, size_t size) {
	void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)args, (void *)CU_LAUNCH_PARAM_BUFFER_SIZE, &size, NULL};
	unsigned long long id;
	CUresult r = l->api.ctx_push(l->ctx);
	if (r == CUDA_SUCCESS && l->api.ctx_id != NULL)
		r = l->api.ctx_id(l->ctx, &id);
	if (r == CUDA_SUCCESS)
		r = l->api.launch(f, grid, 1, 1, block, 1, 1, 0, l->stream, NULL, extra);
	if (r == CUDA_SUCCESS)
		r = l->api.ctx_pop(&l->ctx);
	return (int)r;
}

cloop_took cloop_sync(struct cloop *l) {
	TRY(l, ctx_push, l->ctx);
	TRY(l, stream_sync, l->stream);
	TRY(l, ctx_pop, &l->ctx);
	return (cloop_took){0};
}
