// The symbols of libnccl, and its calls.
#include "shims.h"

#include <stdlib.h>
#include <string.h>

const struct cuvmm_symbol cuvmm_nccl_symbols[] = {
#define REQUIRED(result, field, symbol, params) {symbol, offsetof(struct cuvmm_nccl_api, field), 1},
#define OPTIONAL(result, field, symbol, params) {symbol, offsetof(struct cuvmm_nccl_api, field), 0},
	CUVMM_NCCL_SYMBOLS(REQUIRED, OPTIONAL)
	{0},
};

struct cuvmm_nccl_comm *cuvmm_nccl_new(void) {
	struct cuvmm_nccl_comm *c = calloc(1, sizeof *c);
	if (c != NULL && cuvmm_nccl_reserve(c, 16) != 0) {
		free(c);
		c = NULL;
	}
	return c;
}

void cuvmm_nccl_free(struct cuvmm_nccl_comm *c) {
	free(c->calls);
	free(c);
}

int cuvmm_nccl_reserve(struct cuvmm_nccl_comm *c, size_t n) {
	if (n <= c->capacity)
		return 0;
	struct cuvmm_nccl_call *grown = reallocarray(c->calls, n, sizeof *grown);
	if (grown == NULL)
		return -1;
	c->calls = grown;
	c->capacity = n;
	return 0;
}

// record notes the outcome of a call. NCCL's last error is one text for the whole process:
// it is read at once, and its end is not trusted.
static ncclResult_t record(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_outcome *out, const char *call, ncclResult_t r) {
	out->r = r;
	if (r == ncclSuccess || r == ncclInProgress)
		return r;
	const char *last = api->last_error(NULL);
	out->call = call;
	out->text = api->error_string(r);
	size_t n = last == NULL ? 0 : strnlen(last, sizeof out->last - 1);
	if (n > 0)
		memcpy(out->last, last, n);
	out->last[n] = 0;
	return r;
}

#define RECORD(call, r) record(api, &c->out, call, r)

void cuvmm_nccl_version(const struct cuvmm_nccl_api *api, int *version, struct cuvmm_nccl_outcome *out) {
	record(api, out, "ncclGetVersion", api->version(version));
}

void cuvmm_nccl_unique_id(const struct cuvmm_nccl_api *api, void *id, struct cuvmm_nccl_outcome *out) {
	record(api, out, "ncclGetUniqueId", api->unique_id(id));
}

static ncclConfig_t config(int blocking) {
	ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
	c.blocking = blocking;
	c.splitShare = 1;
	return c;
}

void cuvmm_nccl_join(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, const void *id, int rank, int size) {
	ncclConfig_t with = config(0);
	ncclUniqueId unique;
	memcpy(&unique, id, sizeof unique);
	c->rank = rank;
	RECORD("ncclCommInitRankConfig", api->init(&c->parent, size, unique, rank, &with));
}

// state records the asynchronous error of a communicator: ncclSuccess, ncclInProgress, or a failure.
static ncclResult_t state(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, ncclComm_t of) {
	ncclResult_t now = ncclSuccess, r = api->async_error(of, &now);
	return RECORD("ncclCommGetAsyncError", r != ncclSuccess ? r : now);
}

// split begins to make the child: all members, with the same ranks. The parent is in progress until
// the child exists.
static ncclResult_t split(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c) {
	ncclConfig_t with = config(1);
	ncclResult_t r = RECORD("ncclCommSplit", api->split(c->parent, 0, c->rank, &c->child, &with));
	if (r == ncclSuccess || r == ncclInProgress) {
		c->splitting = 1;
		r = state(api, c, c->parent);
	}
	return r;
}

void cuvmm_nccl_progress(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c) {
	if (c->joined) {
		state(api, c, c->child);
		return;
	}
	ncclResult_t r = state(api, c, c->parent);
	if (r == ncclSuccess && !c->splitting)
		r = split(api, c);
	c->joined = r == ncclSuccess;
}

static void *address(uint64_t p) { return (void *)(uintptr_t)p; }

// queue makes one call. A peer that does not fit an int becomes -1, which NCCL refuses.
static ncclResult_t queue(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, const struct cuvmm_nccl_call *a, cudaStream_t s) {
	int peer = a->peer < 0 || a->peer > INT_MAX ? -1 : (int)a->peer;
	const void *src = address(a->src);
	void *dst = address(a->dst);
	switch (a->operation) {
	case 0:
		return RECORD("ncclAllReduce", api->all_reduce(src, dst, a->count, a->kind, a->reduction, c->child, s));
	case 1:
		return RECORD("ncclReduce", api->reduce(src, dst, a->count, a->kind, a->reduction, peer, c->child, s));
	case 2:
		return RECORD("ncclBroadcast", api->broadcast(src, dst, a->count, a->kind, peer, c->child, s));
	case 3:
		return RECORD("ncclAllGather", api->all_gather(src, dst, a->count, a->kind, c->child, s));
	case 4:
		return RECORD("ncclReduceScatter", api->reduce_scatter(src, dst, a->count, a->kind, a->reduction, c->child, s));
	case 5:
		return RECORD("ncclSend", api->send(src, a->count, a->kind, peer, c->child, s));
	}
	return RECORD("ncclRecv", api->recv(dst, a->count, a->kind, peer, c->child, s));
}

void cuvmm_nccl_run(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, size_t n, uintptr_t stream) {
	cudaStream_t s = (cudaStream_t)stream;
	if (n == 1) {
		queue(api, c, c->calls, s);
		return;
	}
	ncclResult_t r = RECORD("ncclGroupStart", api->group_start());
	if (r != ncclSuccess)
		return;
	for (size_t i = 0; i < n && r == ncclSuccess; i++)
		r = queue(api, c, &c->calls[i], s);
	// The group is the thread's, so it ends here in any case. The first failure counts.
	ncclResult_t end = api->group_end();
	if (r == ncclSuccess)
		RECORD("ncclGroupEnd", end);
}

void cuvmm_nccl_register(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, uint64_t p, uint64_t n) {
	c->handle = NULL;
	RECORD("ncclCommRegister", api->reg(c->child, address(p), n, &c->handle));
}

void cuvmm_nccl_deregister(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, uint64_t handle) {
	RECORD("ncclCommDeregister", api->dereg(c->child, address(handle)));
}

void cuvmm_nccl_register_window(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, uint64_t p, uint64_t n) {
	c->window = NULL;
	RECORD("ncclCommWindowRegister", api->window(c->child, address(p), n, &c->window, NCCL_WIN_COLL_SYMMETRIC));
}

void cuvmm_nccl_deregister_window(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, uint64_t handle) {
	RECORD("ncclCommWindowDeregister", api->dewindow(c->child, address(handle)));
}

void cuvmm_nccl_finalize(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c) {
	RECORD("ncclCommFinalize", api->finalize(c->child));
}

void cuvmm_nccl_destroy(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c) {
	ncclResult_t r = c->out.r;
	int halfway = c->joined && c->child == NULL; // the last call has ended the child alone
	if (r == ncclSuccess && c->parent != NULL && !halfway)
		r = state(api, c, c->joined ? c->child : c->parent);
	if (r == ncclSuccess && !c->joined)
		r = c->out.r = ncclInProgress;
	if (r == ncclInProgress)
		return;
	if (r == ncclSuccess && c->parent != NULL) {
		if (!halfway && RECORD("ncclCommDestroy", api->destroy(c->child)) != ncclSuccess)
			return;
		c->child = NULL;
		if (RECORD("ncclCommDestroy", api->destroy(c->parent)) == ncclSuccess)
			c->parent = NULL;
		return;
	}
	if (c->parent != NULL && api->abort(c->parent) == ncclSuccess)
		c->parent = NULL;
	if (c->child != NULL && api->abort(c->child) == ncclSuccess)
		c->child = NULL;
}

void cuvmm_nccl_abort_parent(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c) {
	if (record(api, &c->ended, "ncclCommAbort", api->abort(c->parent)) == ncclSuccess)
		c->parent = NULL;
}

void cuvmm_nccl_abort_child(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c) {
	if (RECORD("ncclCommAbort", api->abort(c->child)) == ncclSuccess)
		c->child = NULL;
}
