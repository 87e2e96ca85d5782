// What Go calls. A shim keeps no pointer of Go's, and none calls back into Go.
#ifndef CUVMM_NCCL_SHIMS_H
#define CUVMM_NCCL_SHIMS_H

#include "symbols.h"

struct cuvmm_nccl_api {
#define FIELD(result, field, symbol, params) result(*field) params;
	CUVMM_NCCL_SYMBOLS(FIELD, FIELD)
#undef FIELD
};

// cuvmm_nccl_comm is a communicator and where NCCL writes by itself. It is C's memory.
struct cuvmm_nccl_comm {
	const struct cuvmm_nccl_api *api; // a copy of its own
	ncclComm_t comm;
	ncclWindow_t window; // the last that was asked for
};

// cuvmm_nccl_call is a Call of Go's.
struct cuvmm_nccl_call {
	int operation, kind, reduction, peer;
	unsigned long long src, dst, count;
};

int cuvmm_nccl_symbol_count(void);
const char *cuvmm_nccl_symbol_name(int i);
int cuvmm_nccl_symbol_required(int i);
void cuvmm_nccl_bind(struct cuvmm_nccl_api *api, int i, void *address);

ncclResult_t cuvmm_nccl_version(const struct cuvmm_nccl_api *api, int *version);
ncclResult_t cuvmm_nccl_unique_id(const struct cuvmm_nccl_api *api, char id[128]);
const char *cuvmm_nccl_error_string(const struct cuvmm_nccl_api *api, ncclResult_t r);
const char *cuvmm_nccl_last_error(const struct cuvmm_nccl_api *api, const struct cuvmm_nccl_comm *c);

// cuvmm_nccl_new makes a communicator that does not block. *c is NULL if there is no memory, and
// else to be freed once the communicator is destroyed or aborted.
ncclResult_t cuvmm_nccl_new(const struct cuvmm_nccl_api *api, const char id[128], int rank, int size, struct cuvmm_nccl_comm **c);
void cuvmm_nccl_free(struct cuvmm_nccl_comm *c);

ncclResult_t cuvmm_nccl_async_error(struct cuvmm_nccl_comm *c);
ncclResult_t cuvmm_nccl_finalize(struct cuvmm_nccl_comm *c);
ncclResult_t cuvmm_nccl_destroy(struct cuvmm_nccl_comm *c);
ncclResult_t cuvmm_nccl_abort(struct cuvmm_nccl_comm *c);
// cuvmm_nccl_run queues n calls, as a group if there are several. *failed is the index of the
// one that failed, n if it was the group, -1 if none.
ncclResult_t cuvmm_nccl_run(struct cuvmm_nccl_comm *c, unsigned long long stream, const struct cuvmm_nccl_call *calls, int n, int *failed);
ncclResult_t cuvmm_nccl_register(struct cuvmm_nccl_comm *c, unsigned long long at, unsigned long long size, unsigned long long *handle);
ncclResult_t cuvmm_nccl_deregister(struct cuvmm_nccl_comm *c, unsigned long long handle);
ncclResult_t cuvmm_nccl_register_window(struct cuvmm_nccl_comm *c, unsigned long long at, unsigned long long size);
ncclResult_t cuvmm_nccl_deregister_window(struct cuvmm_nccl_comm *c, unsigned long long window);

#endif
