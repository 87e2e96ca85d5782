// Copies of rows that lie a pitch apart.
#include "internal.h"

// As for cuvmm_copy_in and cuvmm_copy_out, the driver may still use pageable memory when it
// returns, so the copies of such memory end with a synchronise of their stream.

CUresult cuvmm_copy_2d_in(cuvmm_lib api, cuvmm_ctx ctx, cuvmm_rows dst, const unsigned char *src, size_t width, size_t rows, CUstream s) {
	CUDA_MEMCPY2D copy = {
		.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = src, .srcPitch = width,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = dst.p, .dstPitch = dst.pitch,
		.WidthInBytes = width, .Height = rows,
	};
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	r = cuvmm_check_address(api, dst.p);
	if (r == CUDA_SUCCESS)
		r = api->copy_2d(&copy, s);
	if (r == CUDA_SUCCESS)
		r = api->stream_sync(s);
	return cuvmm_pop_relaxed(api, r, mode);
}

CUresult cuvmm_copy_2d_out(cuvmm_lib api, cuvmm_ctx ctx, unsigned char *dst, cuvmm_rows src, size_t width, size_t rows, CUstream s) {
	CUDA_MEMCPY2D copy = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = src.p, .srcPitch = src.pitch,
		.dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = dst, .dstPitch = width,
		.WidthInBytes = width, .Height = rows,
	};
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	r = cuvmm_check_address(api, src.p);
	if (r == CUDA_SUCCESS)
		r = api->copy_2d(&copy, s);
	if (r == CUDA_SUCCESS)
		r = api->stream_sync(s);
	return cuvmm_pop_relaxed(api, r, mode);
}

// Either side may be pinned memory of the host, so the driver has to find out.
CUresult cuvmm_copy_2d(cuvmm_lib api, cuvmm_queue q, cuvmm_rows dst, cuvmm_rows src, size_t width, size_t rows) {
	CUDA_MEMCPY2D copy = {
		.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = src.p, .srcPitch = src.pitch,
		.dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = dst.p, .dstPitch = dst.pitch,
		.WidthInBytes = width, .Height = rows,
	};
	CUresult r = cuvmm_push_queue(api, q);
	if (r != CUDA_SUCCESS)
		return r;
	r = cuvmm_check_address(api, dst.p);
	if (r == CUDA_SUCCESS)
		r = cuvmm_check_address(api, src.p);
	if (r == CUDA_SUCCESS)
		r = api->copy_2d(&copy, q.stream);
	return cuvmm_pop(api, r);
}
