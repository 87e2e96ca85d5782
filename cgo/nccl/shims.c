// The symbols of libnccl, and calls of a communicator.
#include "shims.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	size_t offset; // in cuvmm_nccl_api
	int required;
} symbols[] = {
#define NEED(result, field, symbol, params) {symbol, offsetof(struct cuvmm_nccl_api, field), 1},
#define MAY(result, field, symbol, params) {symbol, offsetof(struct cuvmm_nccl_api, field), 0},
	CUVMM_NCCL_SYMBOLS(NEED, MAY)
};

int cuvmm_nccl_symbol_count(void) { return sizeof symbols / sizeof symbols[0]; }

const char *cuvmm_nccl_symbol_name(int i) { return symbols[i].name; }

int cuvmm_nccl_symbol_required(int i) { return symbols[i].required; }

void cuvmm_nccl_bind(struct cuvmm_nccl_api *api, int i, void *address) {
	memcpy((char *)api + symbols[i].offset, &address, sizeof address);
}

ncclResult_t cuvmm_nccl_version(const struct cuvmm_nccl_api *api, int *version) { return api->version(version); }

ncclResult_t cuvmm_nccl_unique_id(const struct cuvmm_nccl_api *api, char id[128]) {
	ncclUniqueId made = {{0}};
	ncclResult_t r = api->unique_id(&made);
	memcpy(id, made.internal, sizeof made.internal);
	return r;
}

const char *cuvmm_nccl_error_string(const struct cuvmm_nccl_api *api, ncclResult_t r) { return api->error_string(r); }

const char *cuvmm_nccl_last_error(const struct cuvmm_nccl_api *api, const struct cuvmm_nccl_comm *c) {
	return api->last_error(c == NULL ? NULL : c->comm);
}

ncclResult_t cuvmm_nccl_new(const struct cuvmm_nccl_api *api, const char id[128], int rank, int size, struct cuvmm_nccl_comm **out) {
	// NCCL may write to the communicator's handle until it stands, so that is C's memory.
	struct memory {
		struct cuvmm_nccl_comm c;
		struct cuvmm_nccl_api api;
	} *m = calloc(1, sizeof *m);
	*out = NULL;
	if (m == NULL)
		return ncclSuccess;
	m->api = *api;
	m->c.api = &m->api;
	*out = &m->c;
	ncclUniqueId with;
	memcpy(with.internal, id, sizeof with.internal);
	ncclConfig_t config = {
		.size = sizeof config,
		.magic = (unsigned int)NCCL_CONFIG_MAGIC,
		.version = NCCL_CONFIG_VERSION,
		.blocking = 0,
		.cgaClusterSize = NCCL_UNDEF_INT,
		.minCTAs = NCCL_UNDEF_INT,
		.maxCTAs = NCCL_UNDEF_INT,
		.netName = NULL,
		.splitShare = NCCL_UNDEF_INT,
	};
	return api->init(&m->c.comm, size, with, rank, &config);
}

void cuvmm_nccl_free(struct cuvmm_nccl_comm *c) { free(c); }

ncclResult_t cuvmm_nccl_async_error(struct cuvmm_nccl_comm *c) {
	ncclResult_t state = ncclSuccess;
	ncclResult_t r = c->api->async_error(c->comm, &state);
	return r != ncclSuccess ? r : state;
}

ncclResult_t cuvmm_nccl_finalize(struct cuvmm_nccl_comm *c) { return c->api->finalize(c->comm); }

ncclResult_t cuvmm_nccl_destroy(struct cuvmm_nccl_comm *c) { return c->api->destroy(c->comm); }

ncclResult_t cuvmm_nccl_abort(struct cuvmm_nccl_comm *c) { return c->api->abort(c->comm); }

static ncclResult_t call(struct cuvmm_nccl_comm *c, cudaStream_t stream, const struct cuvmm_nccl_call *x) {
	const struct cuvmm_nccl_api *api = c->api;
	const void *src = (const void *)(uintptr_t)x->src;
	void *dst = (void *)(uintptr_t)x->dst;
	switch (x->operation) { // as Operation in Go
	case 0:
		return api->all_reduce(src, dst, x->count, x->kind, x->reduction, c->comm, stream);
	case 1:
		return api->reduce(src, dst, x->count, x->kind, x->reduction, x->peer, c->comm, stream);
	case 2:
		return api->broadcast(src, dst, x->count, x->kind, x->peer, c->comm, stream);
	case 3:
		return api->all_gather(src, dst, x->count, x->kind, c->comm, stream);
	case 4:
		return api->reduce_scatter(src, dst, x->count, x->kind, x->reduction, c->comm, stream);
	case 5:
		return api->send(src, x->count, x->kind, x->peer, c->comm, stream);
	default:
		return api->recv(dst, x->count, x->kind, x->peer, c->comm, stream);
	}
}

static int bad(ncclResult_t r) { return r != ncclSuccess && r != ncclInProgress; }

ncclResult_t cuvmm_nccl_run(struct cuvmm_nccl_comm *c, unsigned long long stream, const struct cuvmm_nccl_call *calls, int n, int *failed) {
	cudaStream_t queue = (cudaStream_t)(uintptr_t)stream;
	ncclResult_t first = ncclSuccess, r;
	*failed = -1;
	if (n != 1 && bad(r = c->api->group_start())) {
		*failed = n;
		return r;
	}
	for (int i = 0; i < n && !bad(first); i++) {
		first = call(c, queue, &calls[i]);
		if (bad(first))
			*failed = i;
	}
	if (n == 1)
		return first;
	r = c->api->group_end(); // also after a failure, which it forgets
	if (bad(first))
		return first;
	if (bad(r))
		*failed = n;
	return r;
}

ncclResult_t cuvmm_nccl_register(struct cuvmm_nccl_comm *c, unsigned long long at, unsigned long long size, unsigned long long *handle) {
	void *made = NULL;
	ncclResult_t r = c->api->register_memory(c->comm, (void *)(uintptr_t)at, size, &made);
	*handle = (uintptr_t)made;
	return r;
}

ncclResult_t cuvmm_nccl_deregister(struct cuvmm_nccl_comm *c, unsigned long long handle) {
	return c->api->deregister_memory(c->comm, (void *)(uintptr_t)handle);
}

ncclResult_t cuvmm_nccl_register_window(struct cuvmm_nccl_comm *c, unsigned long long at, unsigned long long size) {
	c->window = NULL;
	return c->api->register_window(c->comm, (void *)(uintptr_t)at, size, &c->window, NCCL_WIN_COLL_SYMMETRIC);
}

ncclResult_t cuvmm_nccl_deregister_window(struct cuvmm_nccl_comm *c, unsigned long long window) {
	return c->api->deregister_window(c->comm, (ncclWindow_t)(uintptr_t)window);
}
