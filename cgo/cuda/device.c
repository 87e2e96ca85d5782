// The primary context of a device: retain, push, pop, synchronise.
#include "internal.h"

#include <stdint.h>

// cuvmm_check_reset returns CONTEXT_IS_DESTROYED if the context was reset. The
// context that comes after a reset has the same address and another id. A driver
// without ids shows a reset only by its own results.
CUresult cuvmm_check_reset(cuvmm_lib api, cuvmm_ctx c) {
	unsigned long long id = 0;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_RESULT);
	if (api->ctx_id == NULL)
		return CUDA_SUCCESS;
	CUresult r = api->ctx_id(c.ctx, &id);
	if (r == CUDA_ERROR_INVALID_CONTEXT || (r == CUDA_SUCCESS && id != c.id))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return r;
}

// cuvmm_push makes a context current. Every call with a stream or an event goes
// through it, because a handle of a context that was reset crashes the driver.
CUresult cuvmm_push(cuvmm_lib api, cuvmm_ctx c) {
	CUcontext old;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_RESULT);
	CUresult r = api->ctx_push(c.ctx);
	if (r == CUDA_ERROR_INVALID_CONTEXT) // it is retained, so it was one
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (r != CUDA_SUCCESS)
		return r;
	r = cuvmm_check_reset(api, c);
	if (r != CUDA_SUCCESS)
		api->ctx_pop(&old);
	return r;
}

// cuvmm_pop undoes cuvmm_push and returns the first error of r and its own.
CUresult cuvmm_pop(cuvmm_lib api, CUresult r) {
	CUcontext old;
	CUresult popped = api->ctx_pop(&old);
	return r != CUDA_SUCCESS ? r : popped;
}

// cuvmm_push_queue makes the context current in which work is queued on a stream.
// cuvmm_pop undoes it.
CUresult cuvmm_push_queue(cuvmm_lib api, cuvmm_queue q) {
	CUcontext own = q.ctx.ctx, old;
	CUresult r = cuvmm_push(api, q.ctx);
	if (r != CUDA_SUCCESS || !q.foreign || api->stream_ctx == NULL)
		return r;
	r = api->stream_ctx(q.stream, &own);
	if (r != CUDA_SUCCESS)
		return cuvmm_pop(api, r);
	if (own == q.ctx.ctx)
		return r;
	r = api->ctx_pop(&old);
	return r != CUDA_SUCCESS ? r : api->ctx_push(own);
}

// cuvmm_push_relaxed is cuvmm_push with the thread's capture mode relaxed: calls
// that would destroy the capture of another stream then leave it alone.
// cuvmm_pop_relaxed undoes both.
CUresult cuvmm_push_relaxed(cuvmm_lib api, cuvmm_ctx ctx, CUstreamCaptureMode *mode) {
	CUresult r = cuvmm_push(api, ctx);
	if (r != CUDA_SUCCESS)
		return r;
	*mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	r = api->exchange_capture_mode(mode);
	return r == CUDA_SUCCESS ? r : cuvmm_pop(api, r);
}

CUresult cuvmm_pop_relaxed(cuvmm_lib api, CUresult r, CUstreamCaptureMode mode) {
	api->exchange_capture_mode(&mode);
	return cuvmm_pop(api, r);
}

// Retain and release may make and destroy the context. Only in relaxed mode does
// a capture of another thread survive that. Where a driver refuses to change the
// mode because no context is current, the call is made in the mode that is set.
CUresult cuvmm_primary_retain(cuvmm_lib api, CUcontext *ctx, int dev) {
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUresult relaxed = api->exchange_capture_mode(&mode);
	if (relaxed != CUDA_SUCCESS && relaxed != CUDA_ERROR_INVALID_CONTEXT)
		return relaxed;
	CUresult r = api->primary_retain(ctx, dev);
	if (relaxed == CUDA_SUCCESS)
		api->exchange_capture_mode(&mode);
	return r;
}

CUresult cuvmm_primary_release(cuvmm_lib api, int dev) {
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_RESULT);
	CUresult relaxed = api->exchange_capture_mode(&mode);
	CUresult r = api->primary_release(dev);
	if (relaxed == CUDA_SUCCESS)
		api->exchange_capture_mode(&mode);
	return r;
}

cuvmm_context cuvmm_open(cuvmm_lib api, int dev) {
	cuvmm_context c = {.r = CUVMM_FORKED_RESULT};
	CUVMM_RETURN_IF_FORKED(c);
	c.r = cuvmm_primary_retain(api, &c.ctx.ctx, dev);
	if (c.r != CUDA_SUCCESS)
		return c;
	if (api->ctx_id != NULL)
		c.r = api->ctx_id(c.ctx.ctx, &c.ctx.id);
	if (c.r == CUDA_SUCCESS) {
		cuvmm_value stream = cuvmm_stream_create(api, c.ctx);
		c.r = stream.r;
		c.copy_stream = (CUstream)(uintptr_t)stream.v;
	}
	if (c.r != CUDA_SUCCESS)
		cuvmm_primary_release(api, dev);
	return c;
}

CUresult cuvmm_sync(cuvmm_lib api, cuvmm_ctx ctx) {
	CUresult r = cuvmm_push(api, ctx);
	if (r != CUDA_SUCCESS)
		return r;
	return cuvmm_pop(api, api->ctx_sync());
}

// cuvmm_sync_if_active retains the context for the call. A context that is reset
// meanwhile is not active, and its work is gone, so that is a success.
CUresult cuvmm_sync_if_active(cuvmm_lib api, int dev) {
	unsigned int flags = 0;
	int active = 0;
	CUcontext ctx;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_RESULT);
	CUresult r = api->primary_state(dev, &flags, &active);
	if (r != CUDA_SUCCESS || !active)
		return r;
	r = cuvmm_primary_retain(api, &ctx, dev);
	if (r != CUDA_SUCCESS)
		return r;
	r = api->ctx_push(ctx);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->ctx_sync());
	CUresult released = cuvmm_primary_release(api, dev);
	if (r == CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return CUDA_SUCCESS;
	return r != CUDA_SUCCESS ? r : released;
}

cuvmm_memory cuvmm_mem_info(cuvmm_lib api, cuvmm_ctx ctx) {
	size_t free = 0, total = 0;
	CUresult r = cuvmm_push(api, ctx);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->mem_info(&free, &total));
	return (cuvmm_memory){r, free, total};
}
