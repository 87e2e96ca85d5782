// Ordinary device memory: cuMemAlloc, and the current pool.
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

cuvmm_value cuvmm_pool_alloc(cuvmm_lib api, cuvmm_queue q, size_t n) {
	CUdeviceptr p = 0;
	if (api->pool_alloc == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = cuvmm_push_queue(api, q);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->pool_alloc(&p, n, q.stream));
	return (cuvmm_value){r, p};
}

CUresult cuvmm_pool_free(cuvmm_lib api, cuvmm_queue q, CUdeviceptr p) {
	if (api->pool_free == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = cuvmm_push_queue(api, q);
	return r != CUDA_SUCCESS ? r : cuvmm_pop(api, api->pool_free(p, q.stream));
}
