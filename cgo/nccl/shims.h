// What Go calls. None calls back into Go, and what NCCL goes on writing to after a call is
// C's memory: struct cuvmm_nccl_comm.
#ifndef CUVMM_NCCL_SHIMS_H
#define CUVMM_NCCL_SHIMS_H

#include "symbols.h"

#include <stdint.h>

struct cuvmm_nccl_api {
#define FIELD(result, field, symbol, params) result(*field) params;
	CUVMM_NCCL_SYMBOLS(FIELD, FIELD)
#undef FIELD
};

int cuvmm_nccl_symbol_count(void);
const char *cuvmm_nccl_symbol_name(int i);
int cuvmm_nccl_symbol_required(int i);
void cuvmm_nccl_bind(struct cuvmm_nccl_api *api, int i, void *address);

// cuvmm_nccl_outcome is what came of a call. Where r is neither ncclSuccess nor
// ncclInProgress, the rest says which function failed, and NCCL's two texts about it.
struct cuvmm_nccl_outcome {
	ncclResult_t r;
	const char *call, *text;
	char last[1024];
};

// cuvmm_nccl_call is Go's Call.
struct cuvmm_nccl_call {
	uint8_t operation, kind, reduction;
	intptr_t peer;
	uint64_t src, dst, count;
};

// cuvmm_nccl_comm is a communicator, and what its calls read and write.
struct cuvmm_nccl_comm {
	ncclComm_t comm;
	struct cuvmm_nccl_outcome out; // of the last call
	void *handle;                  // of the last Register
	ncclWindow_t window;           // of the last RegisterWindow, once it is done
	size_t capacity;
	struct cuvmm_nccl_call *calls; // of Run, so many as capacity
};

// cuvmm_nccl_new returns NULL where there is no memory. cuvmm_nccl_free frees what it has
// returned, and leaves the communicator alone.
struct cuvmm_nccl_comm *cuvmm_nccl_new(void);
void cuvmm_nccl_free(struct cuvmm_nccl_comm *c);

// cuvmm_nccl_reserve makes calls so long. -1: there is no memory.
int cuvmm_nccl_reserve(struct cuvmm_nccl_comm *c, size_t n);

void cuvmm_nccl_version(const struct cuvmm_nccl_api *api, int *version, struct cuvmm_nccl_outcome *out);
void cuvmm_nccl_unique_id(const struct cuvmm_nccl_api *api, void *id, struct cuvmm_nccl_outcome *out);

// cuvmm_nccl_join leaves no communicator after a failure.
void cuvmm_nccl_join(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, const void *id, int rank, int size);
void cuvmm_nccl_progress(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c);
void cuvmm_nccl_run(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, size_t n, uintptr_t stream);
void cuvmm_nccl_register(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, uint64_t p, uint64_t n);
void cuvmm_nccl_deregister(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, uint64_t handle);
void cuvmm_nccl_register_window(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, uint64_t p, uint64_t n);
void cuvmm_nccl_deregister_window(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, uint64_t handle);
void cuvmm_nccl_finalize(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c);

// cuvmm_nccl_destroy ends the communicator unless it is in progress. One that has failed is
// aborted, and the outcome is its failure. comm is NULL afterwards if it has ended.
void cuvmm_nccl_destroy(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c);
void cuvmm_nccl_abort(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c);

#endif
