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
