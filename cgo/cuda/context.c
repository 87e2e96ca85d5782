// Calls that need a context: push, work, pop.
#include "internal.h"

#include <stdint.h>
#include <string.h>
#include <unistd.h>

// same is CONTEXT_IS_DESTROYED where c was reset: the context that comes after a
// reset has the same address and another id. A driver without ids says so only
// by its own results.
static CUresult same(cuvmm_lib api, cuvmm_ctx c) {
	unsigned long long id = 0;
	if (api->ctx_id == NULL)
		return CUDA_SUCCESS;
	CUresult r = api->ctx_id(c.ctx, &id);
	if (r == CUDA_ERROR_INVALID_CONTEXT || (r == CUDA_SUCCESS && id != c.id))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return r;
}

CUresult cuvmm_same(cuvmm_lib api, cuvmm_ctx c) {
	CUVMM_ALIVE(CUVMM_DEAD);
	return same(api, c);
}

// enter pushes a context. Every call with a stream or an event comes through
// here: a handle of a context that was reset crashes the driver.
static CUresult enter(cuvmm_lib api, cuvmm_ctx c) {
	CUcontext old;
	CUVMM_ALIVE(CUVMM_DEAD);
	CUresult r = api->ctx_push(c.ctx);
	if (r == CUDA_ERROR_INVALID_CONTEXT) // it is retained, so it was one
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (r != CUDA_SUCCESS)
		return r;
	r = same(api, c);
	if (r != CUDA_SUCCESS)
		api->ctx_pop(&old);
	return r;
}

// leave pops, and gives the first of the two errors.
static CUresult leave(cuvmm_lib api, CUresult r) {
	CUcontext old;
	CUresult popped = api->ctx_pop(&old);
	return r != CUDA_SUCCESS ? r : popped;
}

// enter_relaxed is enter, and makes calls of this thread that would destroy
// another stream's capture harmless to it; leave_relaxed undoes both.
static CUresult enter_relaxed(cuvmm_lib api, cuvmm_ctx ctx, CUstreamCaptureMode *mode) {
	CUresult r = enter(api, ctx);
	if (r != CUDA_SUCCESS)
		return r;
	*mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	r = api->exchange_capture_mode(mode);
	return r == CUDA_SUCCESS ? r : leave(api, r);
}

static CUresult leave_relaxed(cuvmm_lib api, CUresult r, CUstreamCaptureMode mode) {
	api->exchange_capture_mode(&mode);
	return leave(api, r);
}

// retain and release may make and destroy the context, which a capture of
// another thread would not survive: so they are made in relaxed mode, too. Should
// a driver want a context to be current for that, the call is made without.
static CUresult retain(cuvmm_lib api, CUcontext *ctx, int dev) {
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUresult relaxed = api->exchange_capture_mode(&mode);
	if (relaxed != CUDA_SUCCESS && relaxed != CUDA_ERROR_INVALID_CONTEXT)
		return relaxed;
	CUresult r = api->primary_retain(ctx, dev);
	if (relaxed == CUDA_SUCCESS)
		api->exchange_capture_mode(&mode);
	return r;
}

static CUresult release(cuvmm_lib api, int dev) {
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUresult relaxed = api->exchange_capture_mode(&mode);
	CUresult r = api->primary_release(dev);
	if (relaxed == CUDA_SUCCESS)
		api->exchange_capture_mode(&mode);
	return r;
}

CUresult cuvmm_primary_release(cuvmm_lib api, int dev) {
	CUVMM_ALIVE(CUVMM_DEAD);
	return release(api, dev);
}

// known is INVALID_VALUE for an address that CUDA has not heard of, which it
// would take for pageable host memory.
static CUresult known(cuvmm_lib api, CUdeviceptr p) {
	unsigned int type = 0;
	return api->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p);
}

CUresult cuvmm_push(cuvmm_lib api, cuvmm_ctx ctx) { return enter(api, ctx); }

CUresult cuvmm_pop(cuvmm_lib api) { return leave(api, CUDA_SUCCESS); }

CUresult cuvmm_sync(cuvmm_lib api, cuvmm_ctx ctx) {
	CUresult r = enter(api, ctx);
	if (r != CUDA_SUCCESS)
		return r;
	return leave(api, api->ctx_sync());
}

// cuvmm_sync_if_active takes the context for the call. One that is reset meanwhile
// is not active, and its work is gone.
CUresult cuvmm_sync_if_active(cuvmm_lib api, int dev) {
	unsigned int flags = 0;
	int active = 0;
	CUcontext ctx;
	CUVMM_ALIVE(CUVMM_DEAD);
	CUresult r = api->primary_state(dev, &flags, &active);
	if (r != CUDA_SUCCESS || !active)
		return r;
	r = retain(api, &ctx, dev);
	if (r != CUDA_SUCCESS)
		return r;
	r = api->ctx_push(ctx);
	if (r == CUDA_SUCCESS)
		r = leave(api, api->ctx_sync());
	CUresult released = release(api, dev);
	if (r == CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return CUDA_SUCCESS;
	return r != CUDA_SUCCESS ? r : released;
}

// cuvmm_export_range takes the device's primary context for the call: the driver
// wants one to be current, though not for anything else that maps or shares.
cuvmm_value cuvmm_export_range(cuvmm_lib api, int dev, CUdeviceptr p, size_t size) {
	int fd = -1;
	CUcontext ctx;
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	if (api->mem_range_handle == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = retain(api, &ctx, dev);
	if (r != CUDA_SUCCESS)
		return (cuvmm_value){.r = r};
	r = api->ctx_push(ctx);
	if (r == CUDA_SUCCESS)
		r = leave(api, api->mem_range_handle(&fd, p, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	CUresult released = release(api, dev);
	if (r == CUDA_SUCCESS)
		r = released;
	if (r != CUDA_SUCCESS && fd >= 0)
		close(fd);
	return (cuvmm_value){r, (unsigned long long)fd};
}

// cuvmm_try_ipc takes the device's primary context, if somebody has it active, and
// asks for the handle of a little plain memory. v says whether it tried.
cuvmm_value cuvmm_try_ipc(cuvmm_lib api, int dev) {
	unsigned int flags = 0;
	int active = 0;
	CUcontext ctx;
	CUdeviceptr p;
	CUipcMemHandle handle;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	CUresult r = api->primary_state(dev, &flags, &active);
	if (r != CUDA_SUCCESS || !active)
		return (cuvmm_value){.r = r};
	r = retain(api, &ctx, dev);
	if (r != CUDA_SUCCESS)
		return (cuvmm_value){.r = r};
	r = api->ctx_push(ctx);
	if (r == CUDA_SUCCESS) {
		r = api->exchange_capture_mode(&mode);
		if (r == CUDA_SUCCESS) {
			r = api->plain_alloc(&p, 1);
			if (r == CUDA_SUCCESS) {
				r = api->ipc_get_mem(&handle, p);
				CUresult freed = api->plain_free(p);
				if (r == CUDA_SUCCESS)
					r = freed;
			}
			api->exchange_capture_mode(&mode);
		}
		r = leave(api, r);
	}
	CUresult released = release(api, dev);
	return (cuvmm_value){r != CUDA_SUCCESS ? r : released, 1};
}

// stream_create makes a stream that waits for no other.
static CUresult stream_create(cuvmm_lib api, cuvmm_ctx ctx, CUstream *s) {
	CUstreamCaptureMode mode;
	CUresult r = enter_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	return leave_relaxed(api, api->stream_create(s, CU_STREAM_NON_BLOCKING), mode);
}

cuvmm_context cuvmm_open(cuvmm_lib api, int dev) {
	cuvmm_context c = {.r = CUVMM_DEAD};
	CUVMM_ALIVE(c);
	c.r = retain(api, &c.ctx.ctx, dev);
	if (c.r != CUDA_SUCCESS)
		return c;
	if (api->ctx_id != NULL)
		c.r = api->ctx_id(c.ctx.ctx, &c.ctx.id);
	if (c.r == CUDA_SUCCESS)
		c.r = stream_create(api, c.ctx, &c.own);
	if (c.r != CUDA_SUCCESS)
		release(api, dev);
	return c;
}

cuvmm_peer cuvmm_enable_peer(cuvmm_lib api, cuvmm_ctx ctx, int to) {
	cuvmm_peer p = {.r = CUVMM_DEAD};
	CUstreamCaptureMode mode;
	CUVMM_ALIVE(p);
	p.r = retain(api, &p.ctx.ctx, to);
	if (p.r != CUDA_SUCCESS)
		return p;
	p.retained = 1;
	if (api->ctx_id != NULL)
		p.r = api->ctx_id(p.ctx.ctx, &p.ctx.id);
	if (p.r == CUDA_SUCCESS)
		p.r = enter_relaxed(api, ctx, &mode);
	if (p.r == CUDA_SUCCESS) {
		CUresult enabled = api->ctx_enable_peer(p.ctx.ctx, 0);
		p.r = leave_relaxed(api, enabled, mode);
		if (enabled == CUDA_SUCCESS && p.r != CUDA_SUCCESS) // not popped, so it can be undone here
			api->ctx_disable_peer(p.ctx.ctx);
	}
	if (p.r != CUDA_SUCCESS) {
		release(api, to);
		p.retained = 0;
	}
	return p;
}

// disable takes access away. With a peer's context that was reset it has gone.
static CUresult disable(cuvmm_lib api, cuvmm_ctx peer) {
	CUresult r = same(api, peer);
	if (r == CUDA_SUCCESS)
		r = api->ctx_disable_peer(peer.ctx);
	return r == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_SUCCESS : r;
}

cuvmm_peer cuvmm_disable_peer(cuvmm_lib api, cuvmm_ctx ctx, cuvmm_ctx peer, int to) {
	cuvmm_peer p = {.r = CUVMM_DEAD, .ctx = peer, .retained = 1};
	CUstreamCaptureMode mode;
	CUVMM_ALIVE(p);
	p.r = enter_relaxed(api, ctx, &mode);
	if (p.r != CUDA_SUCCESS)
		return p;
	p.r = disable(api, peer);
	if (p.r == CUDA_SUCCESS || p.r == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) {
		CUresult released = api->primary_release(to);
		if (released == CUDA_SUCCESS || released == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
			p.retained = 0;
		} else if (p.r == CUDA_SUCCESS) {
			p.r = released;
			api->ctx_enable_peer(peer.ctx, 0);
		}
	}
	p.r = leave_relaxed(api, p.r, mode);
	return p;
}

cuvmm_memory cuvmm_mem_info(cuvmm_lib api, cuvmm_ctx ctx) {
	size_t free = 0, total = 0;
	CUresult r = enter(api, ctx);
	if (r == CUDA_SUCCESS)
		r = leave(api, api->mem_info(&free, &total));
	return (cuvmm_memory){r, free, total};
}

// A copy of pageable memory may still be under way when the driver returns, so
// both of these end with a synchronise of their stream.

CUresult cuvmm_copy_in(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr dst, const unsigned char *src, size_t n, CUstream own) {
	CUstreamCaptureMode mode;
	CUresult r = enter_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	r = known(api, dst);
	if (r == CUDA_SUCCESS)
		r = api->copy_in(dst, src, n, own);
	if (r == CUDA_SUCCESS)
		r = api->stream_sync(own);
	return leave_relaxed(api, r, mode);
}

CUresult cuvmm_copy_out(cuvmm_lib api, cuvmm_ctx ctx, unsigned char *dst, CUdeviceptr src, size_t n, CUstream own) {
	CUstreamCaptureMode mode;
	CUresult r = enter_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	r = known(api, src);
	if (r == CUDA_SUCCESS)
		r = api->copy_out(dst, src, n, own);
	if (r == CUDA_SUCCESS)
		r = api->stream_sync(own);
	return leave_relaxed(api, r, mode);
}

CUresult cuvmm_copy(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s) {
	CUresult r = enter(api, ctx);
	if (r != CUDA_SUCCESS)
		return r;
	r = known(api, dst);
	if (r == CUDA_SUCCESS)
		r = known(api, src);
	if (r == CUDA_SUCCESS)
		r = api->copy(dst, src, n, s);
	return leave(api, r);
}

CUresult cuvmm_fill(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr dst, unsigned int pattern, int width, size_t n, CUstream s) {
	CUresult r = enter(api, ctx);
	if (r != CUDA_SUCCESS)
		return r;
	r = known(api, dst);
	if (r != CUDA_SUCCESS)
		return leave(api, r);
	switch (width) {
	case 1:
		r = api->fill8(dst, (unsigned char)pattern, n, s);
		break;
	case 2:
		r = api->fill16(dst, (unsigned short)pattern, n, s);
		break;
	case 4:
		r = api->fill32(dst, pattern, n, s);
		break;
	default:
		r = CUDA_ERROR_INVALID_VALUE;
	}
	return leave(api, r);
}

cuvmm_value cuvmm_stream_create(cuvmm_lib api, cuvmm_ctx ctx) {
	CUstream s = NULL;
	CUresult r = stream_create(api, ctx, &s);
	return (cuvmm_value){r, (uintptr_t)s};
}

CUresult cuvmm_stream_destroy(cuvmm_lib api, cuvmm_ctx ctx, CUstream s) {
	CUstreamCaptureMode mode;
	CUresult r = enter_relaxed(api, ctx, &mode);
	return r != CUDA_SUCCESS ? r : leave_relaxed(api, api->stream_destroy(s), mode);
}

CUresult cuvmm_stream_sync(cuvmm_lib api, cuvmm_ctx ctx, CUstream s) {
	CUstreamCaptureMode mode;
	CUresult r = enter_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	r = api->stream_sync(s);
	return leave_relaxed(api, r, mode);
}

cuvmm_value cuvmm_stream_capturing(cuvmm_lib api, cuvmm_ctx ctx, CUstream s) {
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult r = enter(api, ctx);
	if (r == CUDA_SUCCESS)
		r = leave(api, api->stream_is_capturing(s, &status));
	return (cuvmm_value){r, status != CU_STREAM_CAPTURE_STATUS_NONE};
}

// cuvmm_stream_query asks first whether the stream is being captured, since the
// query would end that.
CUresult cuvmm_stream_query(cuvmm_lib api, cuvmm_ctx ctx, CUstream s) {
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUstreamCaptureMode mode;
	CUresult r = enter_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	r = api->stream_is_capturing(s, &status);
	if (r == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (r == CUDA_SUCCESS)
		r = api->stream_query(s);
	return leave_relaxed(api, r, mode);
}

CUresult cuvmm_begin_capture(cuvmm_lib api, cuvmm_ctx ctx, CUstream s, int mode) {
	CUresult r = enter(api, ctx);
	return r != CUDA_SUCCESS ? r : leave(api, api->stream_begin_capture(s, (CUstreamCaptureMode)mode));
}

CUresult cuvmm_end_capture(cuvmm_lib api, cuvmm_ctx ctx, CUstream s) {
	CUgraph graph = NULL;
	CUresult r = enter(api, ctx);
	if (r != CUDA_SUCCESS)
		return r;
	r = api->stream_end_capture(s, &graph);
	if (graph != NULL)
		api->graph_destroy(graph);
	return leave(api, r);
}

cuvmm_value cuvmm_event_create(cuvmm_lib api, cuvmm_ctx ctx, unsigned int flags) {
	CUevent e = NULL;
	CUstreamCaptureMode mode;
	CUresult r = enter_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = leave_relaxed(api, api->event_create(&e, flags), mode);
	return (cuvmm_value){r, (uintptr_t)e};
}

CUresult cuvmm_event_destroy(cuvmm_lib api, cuvmm_ctx ctx, CUevent e) {
	CUstreamCaptureMode mode;
	CUresult r = enter_relaxed(api, ctx, &mode);
	return r != CUDA_SUCCESS ? r : leave_relaxed(api, api->event_destroy(e), mode);
}

CUresult cuvmm_event_record(cuvmm_lib api, cuvmm_ctx ctx, CUevent e, CUstream s) {
	CUresult r = enter(api, ctx);
	return r != CUDA_SUCCESS ? r : leave(api, api->event_record(e, s));
}

CUresult cuvmm_event_wait(cuvmm_lib api, cuvmm_ctx ctx, CUstream s, CUevent e) {
	CUresult r = enter(api, ctx);
	return r != CUDA_SUCCESS ? r : leave(api, api->stream_wait_event(s, e, 0));
}

CUresult cuvmm_event_sync(cuvmm_lib api, cuvmm_ctx ctx, CUevent e) {
	CUstreamCaptureMode mode;
	CUresult r = enter_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	r = api->event_sync(e);
	return leave_relaxed(api, r, mode);
}

CUresult cuvmm_event_query(cuvmm_lib api, cuvmm_ctx ctx, CUevent e) {
	CUstreamCaptureMode mode;
	CUresult r = enter_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	r = api->event_query(e);
	return leave_relaxed(api, r, mode);
}

cuvmm_value cuvmm_event_elapsed(cuvmm_lib api, cuvmm_ctx ctx, CUevent from, CUevent to) {
	float ms = 0;
	uint32_t bits;
	CUresult r = enter(api, ctx);
	if (r == CUDA_SUCCESS)
		r = leave(api, api->event_elapsed(&ms, from, to));
	memcpy(&bits, &ms, sizeof bits);
	return (cuvmm_value){r, bits};
}

cuvmm_value cuvmm_plain_alloc(cuvmm_lib api, cuvmm_ctx ctx, size_t n) {
	CUdeviceptr p = 0;
	CUresult r = enter(api, ctx);
	if (r == CUDA_SUCCESS)
		r = leave(api, api->plain_alloc(&p, n));
	return (cuvmm_value){r, p};
}

CUresult cuvmm_plain_free(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr p) {
	CUresult r = enter(api, ctx);
	return r != CUDA_SUCCESS ? r : leave(api, api->plain_free(p));
}

cuvmm_value cuvmm_pool_alloc(cuvmm_lib api, cuvmm_ctx ctx, size_t n, CUstream s) {
	CUdeviceptr p = 0;
	if (api->pool_alloc == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = enter(api, ctx);
	if (r == CUDA_SUCCESS)
		r = leave(api, api->pool_alloc(&p, n, s));
	return (cuvmm_value){r, p};
}

CUresult cuvmm_pool_free(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr p, CUstream s) {
	if (api->pool_free == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = enter(api, ctx);
	return r != CUDA_SUCCESS ? r : leave(api, api->pool_free(p, s));
}

CUresult cuvmm_pool_threshold(cuvmm_lib api, int dev, unsigned long long n) {
	CUmemoryPool pool;
	cuuint64_t value = n;
	if (api->pool_default == NULL || api->pool_set == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUVMM_ALIVE(CUVMM_DEAD);
	CUresult r = api->pool_default(&pool, dev);
	return r != CUDA_SUCCESS ? r : api->pool_set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
}

cuvmm_value cuvmm_host_alloc(cuvmm_lib api, cuvmm_ctx ctx, size_t n) {
	void *p = NULL;
	CUstreamCaptureMode mode;
	CUresult r = enter_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = leave_relaxed(api, api->host_alloc(&p, n, CU_MEMHOSTALLOC_PORTABLE), mode);
	return (cuvmm_value){r, (uintptr_t)p};
}

CUresult cuvmm_host_free(cuvmm_lib api, cuvmm_ctx ctx, void *p) {
	CUstreamCaptureMode mode;
	CUresult r = enter_relaxed(api, ctx, &mode);
	return r != CUDA_SUCCESS ? r : leave_relaxed(api, api->host_free(p), mode);
}

CUresult cuvmm_wait_value(cuvmm_lib api, cuvmm_ctx ctx, CUstream s, CUdeviceptr p, unsigned long long v, int width) {
	if (api->wait_value32 == NULL || api->wait_value64 == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = enter(api, ctx);
	if (r != CUDA_SUCCESS)
		return r;
	if (width == 4)
		r = api->wait_value32(s, p, (cuuint32_t)v, CU_STREAM_WAIT_VALUE_GEQ);
	else
		r = api->wait_value64(s, p, v, CU_STREAM_WAIT_VALUE_GEQ);
	return leave(api, r);
}

CUresult cuvmm_write_value(cuvmm_lib api, cuvmm_ctx ctx, CUstream s, CUdeviceptr p, unsigned long long v, int width) {
	if (api->write_value32 == NULL || api->write_value64 == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = enter(api, ctx);
	if (r != CUDA_SUCCESS)
		return r;
	if (width == 4)
		r = api->write_value32(s, p, (cuuint32_t)v, CU_STREAM_WRITE_VALUE_DEFAULT);
	else
		r = api->write_value64(s, p, v, CU_STREAM_WRITE_VALUE_DEFAULT);
	return leave(api, r);
}
