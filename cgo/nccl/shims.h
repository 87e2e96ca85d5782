// What Go calls. None calls back into Go, and what NCCL goes on writing to after a call is
// C's memory: struct cuvmm_nccl_comm.
#ifndef CUVMM_NCCL_SHIMS_H
#define CUVMM_NCCL_SHIMS_H

#include "../internal/dl/dl.h"
#include "symbols.h"

#include <stdint.h>

struct cuvmm_nccl_api {
#define FIELD(result, field, symbol, params) result(*field) params;
	CUVMM_NCCL_SYMBOLS(FIELD, FIELD)
#undef FIELD
};

extern const struct cuvmm_symbol cuvmm_nccl_symbols[];

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

// cuvmm_nccl_comm is a member's two communicators, and what their calls read and write.
//
// The parent joins the group, and does not block. Its child does all else, in calls that block:
// NCCL queues the calls of one that does not block in a thread that it makes for each, which
// takes 40 to 50 us more. The two share resources, the flag that aborts among them: so aborting the parent
// ends a call that waits in the child, and frees nothing of what that call uses.
struct cuvmm_nccl_comm {
	ncclComm_t parent, child;        // NULL: it has ended. The child is NULL before it is there, too
	int rank, splitting, joined;     // how far the join is
	struct cuvmm_nccl_outcome out;   // of the last call
	struct cuvmm_nccl_outcome ended; // of ending the parent, which may be during another call
	void *handle;                    // of the last Register
	ncclWindow_t window;             // of the last RegisterWindow
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

// cuvmm_nccl_join begins to join. After a failure there may be a parent, to be aborted. Else
// cuvmm_nccl_progress does the next step if the one before is done, as long as its outcome is
// ncclInProgress. In a group that stands it is what the child knows of its failure.
void cuvmm_nccl_join(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, const void *id, int rank, int size);
void cuvmm_nccl_progress(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c);
void cuvmm_nccl_run(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, size_t n, uintptr_t stream);
void cuvmm_nccl_register(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, uint64_t p, uint64_t n);
void cuvmm_nccl_deregister(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, uint64_t handle);
void cuvmm_nccl_register_window(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, uint64_t p, uint64_t n);
void cuvmm_nccl_deregister_window(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c, uint64_t handle);
void cuvmm_nccl_finalize(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c);

// cuvmm_nccl_destroy ends both, unless the member is still joining. What has failed, which
// out.r may say already, is aborted, and the outcome is its failure. Of the others,
// cuvmm_nccl_abort_parent may be called during another call, which it ends. A communicator is
// NULL once it has ended.
void cuvmm_nccl_destroy(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c);
void cuvmm_nccl_abort_parent(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c);
void cuvmm_nccl_abort_child(const struct cuvmm_nccl_api *api, struct cuvmm_nccl_comm *c);

#endif
