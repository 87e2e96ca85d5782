// Copies and fills.
#include "internal.h"

// A copy would take an address that CUDA does not know for pageable host memory.
CUresult cuvmm_check_address(cuvmm_lib api, CUdeviceptr p) {
	unsigned int type = 0;
	return api->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p);
}

// A copy of pageable memory may still be under way when the driver returns. So
// cuvmm_copy_in and cuvmm_copy_out end with a synchronise of their stream.

CUresult cuvmm_copy_in(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr dst, const unsigned char *src, size_t n, CUstream s) {
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	r = cuvmm_check_address(api, dst);
	if (r == CUDA_SUCCESS)
		r = api->copy_in(dst, src, n, s);
	if (r == CUDA_SUCCESS)
		r = api->stream_sync(s);
	return cuvmm_pop_relaxed(api, r, mode);
}

CUresult cuvmm_copy_out(cuvmm_lib api, cuvmm_ctx ctx, unsigned char *dst, CUdeviceptr src, size_t n, CUstream s) {
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	r = cuvmm_check_address(api, src);
	if (r == CUDA_SUCCESS)
		r = api->copy_out(dst, src, n, s);
	if (r == CUDA_SUCCESS)
		r = api->stream_sync(s);
	return cuvmm_pop_relaxed(api, r, mode);
}

CUresult cuvmm_copy(cuvmm_lib api, cuvmm_queue q, CUdeviceptr dst, CUdeviceptr src, size_t n) {
	CUresult r = cuvmm_push_queue(api, q);
	if (r != CUDA_SUCCESS)
		return r;
	r = cuvmm_check_address(api, dst);
	if (r == CUDA_SUCCESS)
		r = cuvmm_check_address(api, src);
	if (r == CUDA_SUCCESS)
		r = api->copy(dst, src, n, q.stream);
	return cuvmm_pop(api, r);
}

CUresult cuvmm_fill(cuvmm_lib api, cuvmm_queue q, CUdeviceptr dst, unsigned int pattern, int width, size_t n) {
	CUresult r = cuvmm_push_queue(api, q);
	if (r != CUDA_SUCCESS)
		return r;
	r = cuvmm_check_address(api, dst);
	if (r != CUDA_SUCCESS)
		return cuvmm_pop(api, r);
	switch (width) {
	case 1:
		r = api->fill8(dst, (unsigned char)pattern, n, q.stream);
		break;
	case 2:
		r = api->fill16(dst, (unsigned short)pattern, n, q.stream);
		break;
	case 4:
		r = api->fill32(dst, pattern, n, q.stream);
		break;
	default:
		r = CUDA_ERROR_INVALID_VALUE;
	}
	return cuvmm_pop(api, r);
}
