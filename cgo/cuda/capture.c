// Captures of streams into graphs.
#include "internal.h"

cuvmm_value cuvmm_stream_capturing(cuvmm_lib api, cuvmm_ctx ctx, CUstream s) {
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult r = cuvmm_push(api, ctx);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->stream_is_capturing(s, &status));
	return (cuvmm_value){r, status != CU_STREAM_CAPTURE_STATUS_NONE};
}

CUresult cuvmm_begin_capture(cuvmm_lib api, cuvmm_ctx ctx, CUstream s, int mode) {
	CUresult r = cuvmm_push(api, ctx);
	return r != CUDA_SUCCESS ? r : cuvmm_pop(api, api->stream_begin_capture(s, (CUstreamCaptureMode)mode));
}

CUresult cuvmm_end_capture(cuvmm_lib api, cuvmm_ctx ctx, CUstream s) {
	CUgraph graph = NULL;
	CUresult r = cuvmm_push(api, ctx);
	if (r != CUDA_SUCCESS)
		return r;
	r = api->stream_end_capture(s, &graph);
	if (graph != NULL)
		api->graph_destroy(graph);
	return cuvmm_pop(api, r);
}
