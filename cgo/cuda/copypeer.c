// Copies between two devices.
#include "internal.h"

cuvmm_context cuvmm_retain(cuvmm_lib api, int dev) {
	cuvmm_context c = {.r = CUVMM_FORKED_RESULT};
	CUVMM_RETURN_IF_FORKED(c);
	c.r = cuvmm_primary_retain(api, &c.ctx.ctx, dev);
	if (c.r == CUDA_SUCCESS && api->ctx_id != NULL) {
		c.r = api->ctx_id(c.ctx.ctx, &c.ctx.id);
		if (c.r != CUDA_SUCCESS)
			cuvmm_primary_release(api, dev);
	}
	return c;
}

// memory_of returns INVALID_VALUE unless the address is of memory on that device. The
// driver would take the caller's word.
static CUresult memory_of(cuvmm_lib api, CUdeviceptr p, int dev) {
	int at = -1;
	CUresult r = api->pointer_attribute(&at, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p);
	return r == CUDA_SUCCESS && at != dev ? CUDA_ERROR_INVALID_VALUE : r;
}

CUresult cuvmm_copy_peer(cuvmm_lib api, cuvmm_queue q, CUdeviceptr dst, cuvmm_ctx to, int to_dev, CUdeviceptr src, cuvmm_ctx from, int from_dev, size_t n) {
	if (api->copy_peer == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = cuvmm_push_queue(api, q);
	if (r != CUDA_SUCCESS)
		return r;
	r = memory_of(api, dst, to_dev);
	if (r == CUDA_SUCCESS)
		r = memory_of(api, src, from_dev);
	if (r == CUDA_SUCCESS)
		r = api->copy_peer(dst, to.ctx, src, from.ctx, n, q.stream);
	return cuvmm_pop(api, r);
}
