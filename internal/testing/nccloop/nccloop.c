#include "nccloop.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
	char bytes[128];
} id_t_;

typedef void *comm_t;
typedef void *stream_t;
typedef void *event_t;
typedef unsigned long long ptr_t;

enum { UINT8 = 1, FLOAT32 = 7, SUM = 0 };

#define CUDA_CALLS(F) \
	F(init, "cuInit", (unsigned int)) \
	F(retain, "cuDevicePrimaryCtxRetain", (void **, int)) \
	F(release, "cuDevicePrimaryCtxRelease_v2", (int)) \
	F(set_current, "cuCtxSetCurrent", (void *)) \
	F(stream_create, "cuStreamCreate", (stream_t *, unsigned int)) \
	F(stream_destroy, "cuStreamDestroy_v2", (stream_t)) \
	F(stream_sync, "cuStreamSynchronize", (stream_t)) \
	F(event_create, "cuEventCreate", (event_t *, unsigned int)) \
	F(event_record, "cuEventRecord", (event_t, stream_t)) \
	F(event_destroy, "cuEventDestroy_v2", (event_t)) \
	F(alloc, "cuMemAlloc_v2", (ptr_t *, size_t)) \
	F(free, "cuMemFree_v2", (ptr_t))

#define NCCL_CALLS(F) \
	F(unique_id, "ncclGetUniqueId", (id_t_ *)) \
	F(comm_init, "ncclCommInitRankConfig", (comm_t *, int, id_t_, int, void *)) \
	F(comm_split, "ncclCommSplit", (comm_t, int, int, comm_t *, void *)) \
	F(async_error, "ncclCommGetAsyncError", (comm_t, int *)) \
	F(comm_destroy, "ncclCommDestroy", (comm_t)) \
	F(comm_abort, "ncclCommAbort", (comm_t)) \
	F(all_reduce, "ncclAllReduce", (const void *, void *, size_t, int, int, comm_t, stream_t)) \
	F(all_gather, "ncclAllGather", (const void *, void *, size_t, int, comm_t, stream_t)) \
	F(send, "ncclSend", (const void *, size_t, int, int, comm_t, stream_t)) \
	F(recv, "ncclRecv", (void *, size_t, int, int, comm_t, stream_t)) \
	F(group_start, "ncclGroupStart", (void)) \
	F(group_end, "ncclGroupEnd", (void))

struct nccloop {
	void *cuda_lib, *nccl_lib;
#define FIELD(name, symbol, params) int(*name) params;
	CUDA_CALLS(FIELD)
	NCCL_CALLS(FIELD)
	int dev, rank, size;
	enum nccloop_way way;
	void *ctx;
	stream_t stream;
	event_t before, after; // recorded around each call if watched
	int watched;
	comm_t comm, parent; // parent: of a child
	ptr_t a, b;
	ptr_t from, to; // used instead of a and b; 0: they are
};

enum { IN_PROGRESS = 7 };

#define TRY(l, field, ...) \
	do { \
		int r_ = (l)->field(__VA_ARGS__); \
		while (r_ == IN_PROGRESS && (l)->comm != NULL) { \
			int failed_ = (l)->async_error((l)->comm, &r_); \
			if (failed_ != 0) \
				r_ = failed_; \
		} \
		if (r_ != 0) \
			return (nccloop_took){.call = #field, .r = r_}; \
	} while (0)

static long long now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// bind_all finds every symbol. It returns the name of a missing one.
static const char *bind_all(struct nccloop *l) {
	void *at;
#define BIND(lib, name, symbol) \
	at = dlsym(lib, symbol); \
	if (at == NULL) \
		return symbol; \
	memcpy(&l->name, &at, sizeof at);
#define BIND_CUDA(name, symbol, params) BIND(l->cuda_lib, name, symbol)
#define BIND_NCCL(name, symbol, params) BIND(l->nccl_lib, name, symbol)
	if (l->cuda_lib != NULL) {
		CUDA_CALLS(BIND_CUDA)
	}
	NCCL_CALLS(BIND_NCCL)
	return NULL;
}

static nccloop_took load(struct nccloop *l, const char *cuda, const char *nccl) {
	if (cuda != NULL && (l->cuda_lib = dlopen(cuda, RTLD_NOW | RTLD_LOCAL)) == NULL)
		return (nccloop_took){.call = "dlopen libcuda", .r = -1};
	if ((l->nccl_lib = dlopen(nccl, RTLD_NOW | RTLD_LOCAL)) == NULL)
		return (nccloop_took){.call = "dlopen libnccl", .r = -1};
	const char *missing = bind_all(l);
	return (nccloop_took){.call = missing, .r = missing == NULL ? 0 : -1};
}

nccloop_took nccloop_id(const char *nccl, char id[128]) {
	struct nccloop l = {0};
	nccloop_took t = load(&l, NULL, nccl);
	if (t.call != NULL)
		return t;
	id_t_ made;
	TRY(&l, unique_id, &made);
	memcpy(id, made.bytes, sizeof made.bytes);
	return (nccloop_took){0};
}

static nccloop_took start(struct nccloop *l, const char id[128], size_t bytes) {
	TRY(l, init, 0);
	TRY(l, retain, &l->ctx, l->dev);
	TRY(l, set_current, l->ctx);
	TRY(l, stream_create, &l->stream, 1);
	TRY(l, event_create, &l->before, 3); // blocking, without times
	TRY(l, event_create, &l->after, 3);
	TRY(l, alloc, &l->a, bytes);
	TRY(l, alloc, &l->b, bytes);
	id_t_ with;
	memcpy(with.bytes, id, sizeof with.bytes);
	struct { // ncclConfig_t as of 2.18
		size_t size;
		unsigned int magic, version;
		int blocking, cluster, min, max;
		const char *net;
		int share;
	} config = {sizeof config, 0xcafebeef, 21801, l->way == NCCLOOP_BLOCKING, INT_MIN, INT_MIN, INT_MIN, NULL, l->way == NCCLOOP_CHILD ? 1 : INT_MIN};
	TRY(l, comm_init, &l->comm, l->size, with, l->rank, &config);
	if (l->way != NCCLOOP_CHILD)
		return (nccloop_took){0};
	l->parent = l->comm;
	config.blocking = 1;
	comm_t child = NULL;
	TRY(l, comm_split, l->parent, 0, l->rank, &child, &config); // what is asked is the parent
	int state = IN_PROGRESS; // also where the call has said success
	while (state == IN_PROGRESS)
		TRY(l, async_error, l->parent, &state);
	if (state != 0 || child == NULL)
		return (nccloop_took){.call = "comm_split", .r = state};
	l->comm = child;
	return (nccloop_took){0};
}

nccloop_took nccloop_open(struct nccloop **out, const char *cuda, const char *nccl, int dev, const char id[128], int rank, int size, enum nccloop_way way, size_t bytes) {
	struct nccloop *l = calloc(1, sizeof *l);
	if (l == NULL)
		return (nccloop_took){.call = "calloc", .r = -1};
	l->dev = dev;
	l->rank = rank;
	l->size = size;
	l->way = way;
	nccloop_took t = load(l, cuda, nccl);
	if (t.call == NULL)
		t = start(l, id, bytes);
	if (t.call == NULL)
		*out = l;
	else
		free(l); // the process of a test ends then
	return t;
}

static nccloop_took release(struct nccloop *l) {
	TRY(l, free, l->a);
	TRY(l, free, l->b);
	TRY(l, event_destroy, l->before);
	TRY(l, event_destroy, l->after);
	TRY(l, stream_destroy, l->stream);
	TRY(l, release, l->dev);
	free(l);
	return (nccloop_took){0};
}

nccloop_took nccloop_close(struct nccloop *l) {
	TRY(l, set_current, l->ctx);
	TRY(l, stream_sync, l->stream);
	TRY(l, comm_destroy, l->comm);
	if (l->parent != NULL)
		TRY(l, comm_destroy, l->parent);
	return release(l);
}

nccloop_took nccloop_begin(struct nccloop *l) {
	TRY(l, set_current, l->ctx);
	int r = l->all_reduce((const void *)l->a, (void *)l->b, 1, FLOAT32, SUM, l->comm, l->stream);
	return r == 0 || r == IN_PROGRESS ? (nccloop_took){0} : (nccloop_took){.call = "ncclAllReduce", .r = r};
}

nccloop_took nccloop_abort(struct nccloop *l) {
	TRY(l, set_current, l->ctx);
	int r = l->comm_abort(l->comm);
	if (r != 0)
		return (nccloop_took){.call = "ncclCommAbort", .r = r};
	TRY(l, stream_sync, l->stream);
	l->comm = NULL;
	return release(l);
}

void nccloop_use(struct nccloop *l, unsigned long long a, unsigned long long b) {
	l->from = a;
	l->to = b;
}

void nccloop_watch(struct nccloop *l, int watched) { l->watched = watched; }

static nccloop_took once(struct nccloop *l, enum nccloop_op op, const size_t *bytes) {
	size_t n = bytes[l->rank];
	const void *a = (const void *)(l->from != 0 ? l->from : l->a);
	char *b = (char *)(l->from != 0 ? l->to : l->b);
	switch (op) {
	case NCCLOOP_ALL_REDUCE:
		TRY(l, all_reduce, a, b, n / 4, FLOAT32, SUM, l->comm, l->stream);
		return (nccloop_took){0};
	case NCCLOOP_ALL_GATHER:
		TRY(l, all_gather, a, b, n, UINT8, l->comm, l->stream);
		return (nccloop_took){0};
	case NCCLOOP_SEND_RECV:
		TRY(l, group_start);
		TRY(l, send, a, n, UINT8, (l->rank + 1) % l->size, l->comm, l->stream);
		TRY(l, recv, b, n, UINT8, (l->rank + l->size - 1) % l->size, l->comm, l->stream);
		TRY(l, group_end);
		return (nccloop_took){0};
	case NCCLOOP_GATHER_UNEQUAL:
		TRY(l, group_start);
		for (int i = 0; i < l->size; i++) {
			TRY(l, send, a, n, UINT8, i, l->comm, l->stream);
			TRY(l, recv, b, bytes[i], UINT8, i, l->comm, l->stream);
			b += bytes[i];
		}
		TRY(l, group_end);
		return (nccloop_took){0};
	}
	return (nccloop_took){.call = "no such operation", .r = -1};
}

static nccloop_took run(struct nccloop *l, enum nccloop_op op, const size_t *bytes, int n, int queue_only) {
	TRY(l, set_current, l->ctx);
	long long from = now();
	for (int i = 0; i < n; i++) {
		if (l->watched)
			TRY(l, event_record, l->before, l->stream);
		nccloop_took t = once(l, op, bytes);
		if (t.call != NULL)
			return t;
		if (l->watched)
			TRY(l, event_record, l->after, l->stream);
	}
	long long to = now();
	TRY(l, stream_sync, l->stream);
	if (!queue_only)
		to = now();
	return (nccloop_took){.ns = to - from};
}

nccloop_took nccloop_run(struct nccloop *l, enum nccloop_op op, const size_t *bytes, int n) {
	return run(l, op, bytes, n, 0);
}

nccloop_took nccloop_queue(struct nccloop *l, enum nccloop_op op, const size_t *bytes, int n) {
	return run(l, op, bytes, n, 1);
}
