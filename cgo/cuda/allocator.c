// Ordinary device memory: cuMemAlloc, and the default pool.
#include "internal.h"

cuvmm_value cuvmm_plain_alloc(cuvmm_lib api, cuvmm_ctx ctx, size_t n) {
	CUdeviceptr p = 0;
	CUresult r = cuvmm_push(api, ctx);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->plain_alloc(&p, n));
	return (cuvmm_value){r, p};
}

CUresult cuvmm_plain_free(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr p) {
	CUresult r = cuvmm_push(api, ctx);
	return r != CUDA_SUCCESS ? r : cuvmm_pop(api, api->plain_free(p));
}

cuvmm_value cuvmm_pool_alloc(cuvmm_lib api, cuvmm_ctx ctx, size_t n, CUstream s) {
	CUdeviceptr p = 0;
	if (api->pool_alloc == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = cuvmm_push(api, ctx);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->pool_alloc(&p, n, s));
	return (cuvmm_value){r, p};
}

CUresult cuvmm_pool_free(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr p, CUstream s) {
	if (api->pool_free == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = cuvmm_push(api, ctx);
	return r != CUDA_SUCCESS ? r : cuvmm_pop(api, api->pool_free(p, s));
}

CUresult cuvmm_pool_threshold(cuvmm_lib api, int dev, unsigned long long n) {
	CUmemoryPool pool;
	cuuint64_t value = n;
	if (api->pool_default == NULL || api->pool_set == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_RESULT);
	CUresult r = api->pool_default(&pool, dev);
	return r != CUDA_SUCCESS ? r : api->pool_set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
}
