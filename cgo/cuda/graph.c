// Captures of streams, and the graphs that they become.
#include "internal.h"

#include <stdint.h>

cuvmm_value cuvmm_stream_capturing(cuvmm_lib api, cuvmm_ctx ctx, CUstream s) {
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult r = cuvmm_push(api, ctx);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->stream_is_capturing(s, &status));
	return (cuvmm_value){r, status != CU_STREAM_CAPTURE_STATUS_NONE};
}

// cuvmm_capture_id is 0 for a stream that is not being captured. CUDA has no id for a
// capture that was destroyed.
cuvmm_value cuvmm_capture_id(cuvmm_lib api, cuvmm_ctx ctx, CUstream s) {
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	cuuint64_t id = 0;
	if (api->stream_capture_info == NULL)
		return (cuvmm_value){CUDA_ERROR_NOT_SUPPORTED, 0};
	CUresult r = cuvmm_push(api, ctx);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->stream_capture_info(s, &status, &id));
	if (r == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
		r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	return (cuvmm_value){r, r == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? id : 0};
}

CUresult cuvmm_begin_capture(cuvmm_lib api, cuvmm_ctx ctx, CUstream s, int mode) {
	CUresult r = cuvmm_push(api, ctx);
	return r != CUDA_SUCCESS ? r : cuvmm_pop(api, api->stream_begin_capture(s, (CUstreamCaptureMode)mode));
}

cuvmm_value cuvmm_end_capture(cuvmm_lib api, cuvmm_ctx ctx, CUstream s) {
	CUgraph graph = NULL;
	CUresult r = cuvmm_push(api, ctx);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->stream_end_capture(s, &graph));
	return (cuvmm_value){r, (uintptr_t)graph};
}

CUresult cuvmm_graph_destroy(cuvmm_lib api, cuvmm_ctx ctx, CUgraph graph) {
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	return r != CUDA_SUCCESS ? r : cuvmm_pop_relaxed(api, api->graph_destroy(graph), mode);
}

cuvmm_value cuvmm_graph_instantiate(cuvmm_lib api, cuvmm_ctx ctx, CUgraph graph) {
	CUgraphExec exec = NULL;
	CUstreamCaptureMode mode;
	if (api->graph_instantiate == NULL)
		return (cuvmm_value){CUDA_ERROR_NOT_SUPPORTED, 0};
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop_relaxed(api, api->graph_instantiate(&exec, graph, 0), mode);
	return (cuvmm_value){r, (uintptr_t)exec};
}

CUresult cuvmm_graph_exec_destroy(cuvmm_lib api, cuvmm_ctx ctx, CUgraphExec exec) {
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	return r != CUDA_SUCCESS ? r : cuvmm_pop_relaxed(api, api->graph_exec_destroy(exec), mode);
}

CUresult cuvmm_graph_update(cuvmm_lib api, cuvmm_ctx ctx, CUgraphExec exec, CUgraph graph) {
	CUgraphNode node = NULL;
	CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
	CUstreamCaptureMode mode;
	if (api->graph_update == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	return r != CUDA_SUCCESS ? r : cuvmm_pop_relaxed(api, api->graph_update(exec, graph, &node, &result), mode);
}

CUresult cuvmm_graph_launch(cuvmm_lib api, cuvmm_ctx ctx, CUgraphExec exec, CUstream s) {
	CUresult r = cuvmm_push(api, ctx);
	return r != CUDA_SUCCESS ? r : cuvmm_pop(api, api->graph_launch(exec, s));
}
