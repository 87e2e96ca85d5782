// Pools of stream-ordered memory.
#include "internal.h"

#include <stdint.h>

cuvmm_value cuvmm_pool_default(cuvmm_lib api, cuvmm_ctx ctx, int dev) {
	CUmemoryPool pool = NULL;
	if (api->pool_default == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = cuvmm_push(api, ctx);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->pool_default(&pool, dev));
	return (cuvmm_value){r, (uintptr_t)pool};
}

cuvmm_value cuvmm_pool_current(cuvmm_lib api, cuvmm_ctx ctx, int dev) {
	CUmemoryPool pool = NULL;
	if (api->pool_current == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = cuvmm_push(api, ctx);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->pool_current(&pool, dev));
	return (cuvmm_value){r, (uintptr_t)pool};
}

CUresult cuvmm_pool_set_current(cuvmm_lib api, cuvmm_ctx ctx, int dev, CUmemoryPool pool) {
	if (api->pool_set_current == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = cuvmm_push(api, ctx);
	return r != CUDA_SUCCESS ? r : cuvmm_pop(api, api->pool_set_current(dev, pool));
}

cuvmm_value cuvmm_pool_create(cuvmm_lib api, cuvmm_ctx ctx, CUmemPoolProps props) {
	CUmemoryPool pool = NULL;
	CUstreamCaptureMode mode;
	if (api->pool_create == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop_relaxed(api, api->pool_create(&pool, &props), mode);
	return (cuvmm_value){r, (uintptr_t)pool};
}

CUresult cuvmm_pool_destroy(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool) {
	CUstreamCaptureMode mode;
	if (api->pool_destroy == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	return r != CUDA_SUCCESS ? r : cuvmm_pop_relaxed(api, api->pool_destroy(pool), mode);
}

// cuvmm_try_pool makes a pool without memory and destroys it. That needs no context.
CUresult cuvmm_try_pool(cuvmm_lib api, CUmemPoolProps props) {
	CUmemoryPool pool;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_RESULT);
	if (api->pool_create == NULL || api->pool_destroy == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = api->pool_create(&pool, &props);
	return r != CUDA_SUCCESS ? r : api->pool_destroy(pool);
}

cuvmm_value cuvmm_pool_alloc_from(cuvmm_lib api, cuvmm_queue q, CUmemoryPool pool, size_t n) {
	CUdeviceptr p = 0;
	if (api->pool_alloc_from == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = cuvmm_push_queue(api, q);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->pool_alloc_from(&p, n, pool, q.stream));
	return (cuvmm_value){r, p};
}

CUresult cuvmm_pool_trim(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool, size_t keep) {
	CUstreamCaptureMode mode;
	if (api->pool_trim == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	return r != CUDA_SUCCESS ? r : cuvmm_pop_relaxed(api, api->pool_trim(pool, keep), mode);
}

// is_int reports whether an attribute is an int. The others have 8 bytes.
static int is_int(int attribute) { return attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; }

cuvmm_value cuvmm_pool_get(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool, int attribute) {
	int flag = 0;
	cuuint64_t bytes = 0;
	if (api->pool_get == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = cuvmm_push(api, ctx);
	if (r == CUDA_SUCCESS) {
		void *value = is_int(attribute) ? (void *)&flag : (void *)&bytes;
		r = cuvmm_pop(api, api->pool_get(pool, (CUmemPool_attribute)attribute, value));
	}
	return (cuvmm_value){r, is_int(attribute) ? (unsigned long long)flag : bytes};
}

CUresult cuvmm_pool_set(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool, int attribute, unsigned long long v) {
	int flag = (int)v;
	cuuint64_t bytes = v;
	if (api->pool_set == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = cuvmm_push(api, ctx);
	if (r != CUDA_SUCCESS)
		return r;
	void *value = is_int(attribute) ? (void *)&flag : (void *)&bytes;
	return cuvmm_pop(api, api->pool_set(pool, (CUmemPool_attribute)attribute, value));
}

CUresult cuvmm_pool_set_access(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool, const CUmemAccessDesc *who, size_t n) {
	CUstreamCaptureMode mode;
	if (api->pool_set_access == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	return r != CUDA_SUCCESS ? r : cuvmm_pop_relaxed(api, api->pool_set_access(pool, who, n), mode);
}

cuvmm_value cuvmm_pool_get_access(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool, CUmemLocation who) {
	CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	if (api->pool_get_access == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = cuvmm_push(api, ctx);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->pool_get_access(&flags, pool, &who));
	return (cuvmm_value){r, flags};
}

// cuvmm_pool_of asks for the device first: what knows that, and not the pool, is memory
// of none, or of a driver that does not have pools. Memory of a pool is of no context, so
// none is asked for.
cuvmm_pool_and_device cuvmm_pool_of(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr p) {
	cuvmm_pool_and_device of = {.device = -1};
	of.r = cuvmm_push(api, ctx);
	if (of.r != CUDA_SUCCESS)
		return of;
	of.r = api->pointer_attribute(&of.device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p);
	if (of.r == CUDA_SUCCESS && api->pool_default != NULL) {
		of.r = api->pointer_attribute(&of.pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p);
		if (of.r == CUDA_ERROR_INVALID_VALUE || of.r == CUDA_ERROR_NOT_SUPPORTED) {
			of.pool = NULL;
			of.r = CUDA_SUCCESS;
		}
	}
	of.r = cuvmm_pop(api, of.r);
	return of;
}
