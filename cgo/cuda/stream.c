// Streams.
#include "internal.h"

#include <stdint.h>

// cuvmm_stream_create makes a stream that waits for no other.
cuvmm_value cuvmm_stream_create(cuvmm_lib api, cuvmm_ctx ctx) {
	CUstream s = NULL;
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop_relaxed(api, api->stream_create(&s, CU_STREAM_NON_BLOCKING), mode);
	return (cuvmm_value){r, (uintptr_t)s};
}

// cuvmm_stream_create_priority does not refuse a priority beyond the range: the driver
// takes the nearest.
cuvmm_value cuvmm_stream_create_priority(cuvmm_lib api, cuvmm_ctx ctx, int priority) {
	CUstream s = NULL;
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop_relaxed(api, api->stream_create_priority(&s, CU_STREAM_NON_BLOCKING, priority), mode);
	return (cuvmm_value){r, (uintptr_t)s};
}

cuvmm_priorities cuvmm_stream_priorities(cuvmm_lib api, cuvmm_ctx ctx) {
	cuvmm_priorities p = {0};
	p.r = cuvmm_push(api, ctx);
	if (p.r == CUDA_SUCCESS)
		p.r = cuvmm_pop(api, api->stream_priorities(&p.least, &p.greatest));
	return p;
}

CUresult cuvmm_stream_destroy(cuvmm_lib api, cuvmm_ctx ctx, CUstream s) {
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	return r != CUDA_SUCCESS ? r : cuvmm_pop_relaxed(api, api->stream_destroy(s), mode);
}

CUresult cuvmm_stream_sync(cuvmm_lib api, cuvmm_ctx ctx, CUstream s) {
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	r = api->stream_sync(s);
	return cuvmm_pop_relaxed(api, r, mode);
}

// cuvmm_stream_query asks first whether the stream is being captured, because the
// query would destroy the capture.
CUresult cuvmm_stream_query(cuvmm_lib api, cuvmm_ctx ctx, CUstream s) {
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	r = api->stream_is_capturing(s, &status);
	if (r == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (r == CUDA_SUCCESS)
		r = api->stream_query(s);
	return cuvmm_pop_relaxed(api, r, mode);
}
