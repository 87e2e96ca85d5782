// Pairs of devices.
#include "internal.h"

cuvmm_value cuvmm_can_access_peer(cuvmm_lib api, int from, int to) {
	int can = 0;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	CUresult r = api->device_can_access_peer(&can, from, to);
	return (cuvmm_value){r, (unsigned long long)can};
}

cuvmm_link cuvmm_peering(cuvmm_lib api, int from, int to) {
	cuvmm_link l = {.r = CUVMM_FORKED_RESULT};
	CUVMM_RETURN_IF_FORKED(l);
	l.r = CUDA_SUCCESS;
	if (api->device_p2p == NULL)
		return l;
	l.known = 1;
	l.r = api->device_p2p(&l.rank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, from, to);
	if (l.r == CUDA_SUCCESS)
		l.r = api->device_p2p(&l.atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, from, to);
	return l;
}

cuvmm_peer cuvmm_enable_peer(cuvmm_lib api, cuvmm_ctx ctx, int to) {
	cuvmm_peer p = {.r = CUVMM_FORKED_RESULT};
	CUstreamCaptureMode mode;
	CUVMM_RETURN_IF_FORKED(p);
	// The peer's context must exist for as long as access to it is enabled.
	p.r = cuvmm_primary_retain(api, &p.ctx.ctx, to);
	if (p.r != CUDA_SUCCESS)
		return p;
	p.retained = 1;
	if (api->ctx_id != NULL)
		p.r = api->ctx_id(p.ctx.ctx, &p.ctx.id);
	if (p.r == CUDA_SUCCESS)
		p.r = cuvmm_push_relaxed(api, ctx, &mode);
	if (p.r == CUDA_SUCCESS) {
		CUresult enabled = api->ctx_enable_peer(p.ctx.ctx, 0);
		p.r = cuvmm_pop_relaxed(api, enabled, mode);
		// Where the pop failed the context is still current, so this undoes it.
		if (enabled == CUDA_SUCCESS && p.r != CUDA_SUCCESS)
			api->ctx_disable_peer(p.ctx.ctx);
	}
	if (p.r != CUDA_SUCCESS) {
		cuvmm_primary_release(api, to);
		p.retained = 0;
	}
	return p;
}

// disable takes access away. A reset of the peer's context has done so already.
static CUresult disable(cuvmm_lib api, cuvmm_ctx peer) {
	CUresult r = cuvmm_check_reset(api, peer);
	if (r == CUDA_SUCCESS)
		r = api->ctx_disable_peer(peer.ctx);
	return r == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_SUCCESS : r;
}

cuvmm_peer cuvmm_disable_peer(cuvmm_lib api, cuvmm_ctx ctx, cuvmm_ctx peer, int to) {
	cuvmm_peer p = {.r = CUVMM_FORKED_RESULT, .ctx = peer, .retained = 1};
	CUstreamCaptureMode mode;
	CUVMM_RETURN_IF_FORKED(p);
	p.r = cuvmm_push_relaxed(api, ctx, &mode);
	if (p.r != CUDA_SUCCESS)
		return p;
	p.r = disable(api, peer);
	// Only without access may the peer's context go. If it cannot be released,
	// access is enabled again, so that the caller may try both once more.
	if (p.r == CUDA_SUCCESS || p.r == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) {
		CUresult released = api->primary_release(to);
		if (released == CUDA_SUCCESS || released == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
			p.retained = 0;
		} else if (p.r == CUDA_SUCCESS) {
			p.r = released;
			api->ctx_enable_peer(peer.ctx, 0);
		}
	}
	p.r = cuvmm_pop_relaxed(api, p.r, mode);
	return p;
}
