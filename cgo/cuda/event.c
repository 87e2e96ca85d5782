// Events.
#include "internal.h"

#include <stdint.h>
#include <string.h>

cuvmm_value cuvmm_event_create(cuvmm_lib api, cuvmm_ctx ctx, unsigned int flags) {
	CUevent e = NULL;
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop_relaxed(api, api->event_create(&e, flags), mode);
	return (cuvmm_value){r, (uintptr_t)e};
}

CUresult cuvmm_event_destroy(cuvmm_lib api, cuvmm_ctx ctx, CUevent e) {
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	return r != CUDA_SUCCESS ? r : cuvmm_pop_relaxed(api, api->event_destroy(e), mode);
}

CUresult cuvmm_event_record(cuvmm_lib api, cuvmm_ctx ctx, CUevent e, CUstream s) {
	CUresult r = cuvmm_push(api, ctx);
	return r != CUDA_SUCCESS ? r : cuvmm_pop(api, api->event_record(e, s));
}

// cuvmm_ctx_record refuses while a stream of the context is being captured, and destroys the
// capture.
CUresult cuvmm_ctx_record(cuvmm_lib api, cuvmm_ctx ctx, CUevent e) {
	if (api->ctx_record_event == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = cuvmm_push(api, ctx);
	return r != CUDA_SUCCESS ? r : cuvmm_pop(api, api->ctx_record_event(ctx.ctx, e));
}

CUresult cuvmm_event_wait(cuvmm_lib api, cuvmm_ctx ctx, CUstream s, CUevent e) {
	CUresult r = cuvmm_push(api, ctx);
	return r != CUDA_SUCCESS ? r : cuvmm_pop(api, api->stream_wait_event(s, e, 0));
}

CUresult cuvmm_event_sync(cuvmm_lib api, cuvmm_ctx ctx, CUevent e) {
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	r = api->event_sync(e);
	return cuvmm_pop_relaxed(api, r, mode);
}

CUresult cuvmm_event_query(cuvmm_lib api, cuvmm_ctx ctx, CUevent e) {
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	r = api->event_query(e);
	return cuvmm_pop_relaxed(api, r, mode);
}

cuvmm_value cuvmm_event_elapsed(cuvmm_lib api, cuvmm_ctx ctx, CUevent from, CUevent to) {
	float ms = 0;
	uint32_t bits;
	CUresult r = cuvmm_push(api, ctx);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->event_elapsed(&ms, from, to));
	memcpy(&bits, &ms, sizeof bits);
	return (cuvmm_value){r, bits};
}
