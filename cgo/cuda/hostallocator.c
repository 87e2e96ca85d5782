// Page-locked host memory.
#include "internal.h"

#include <stdint.h>

cuvmm_value cuvmm_host_alloc(cuvmm_lib api, cuvmm_ctx ctx, size_t n) {
	void *p = NULL;
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop_relaxed(api, api->host_alloc(&p, n, CU_MEMHOSTALLOC_PORTABLE), mode);
	return (cuvmm_value){r, (uintptr_t)p};
}

CUresult cuvmm_host_free(cuvmm_lib api, cuvmm_ctx ctx, void *p) {
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	return r != CUDA_SUCCESS ? r : cuvmm_pop_relaxed(api, api->host_free(p), mode);
}
