// Every symbol of libnccl that this package calls: its result, our name for it, the exported
// symbol, and its parameters; and NCCL's types. The required ones are there from 2.18 on, those
// of registration from 2.19, those of windows from 2.27.
#ifndef CUVMM_NCCL_SYMBOLS_H
#define CUVMM_NCCL_SYMBOLS_H

#include <limits.h>
#include <stddef.h>

typedef int ncclResult_t;
typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct CUstream_st *cudaStream_t;
typedef int ncclDataType_t;
typedef int ncclRedOp_t;

typedef struct {
	char internal[128];
} ncclUniqueId;

// ncclConfig_t is as of NCCL 2.18. Its size and version tell newer ones which fields it has.
typedef struct {
	size_t size;
	unsigned int magic;
	unsigned int version;
	int blocking;
	int cgaClusterSize;
	int minCTAs;
	int maxCTAs;
	const char *netName;
	int splitShare;
} ncclConfig_t;

enum {
	NCCL_CONFIG_MAGIC = 0xcafebeef - 0x100000000,
	NCCL_CONFIG_VERSION = 21801,
	NCCL_UNDEF_INT = INT_MIN,
	NCCL_WIN_COLL_SYMMETRIC = 1,
	ncclSuccess = 0,
	ncclInProgress = 7,
};

#define CUVMM_NCCL_SYMBOLS(REQUIRED, OPTIONAL) \
	REQUIRED(ncclResult_t, version, "ncclGetVersion", (int *version)) \
	REQUIRED(ncclResult_t, unique_id, "ncclGetUniqueId", (ncclUniqueId *id)) \
	REQUIRED(const char *, error_string, "ncclGetErrorString", (ncclResult_t result)) \
	REQUIRED(const char *, last_error, "ncclGetLastError", (ncclComm_t comm)) \
	REQUIRED(ncclResult_t, init, "ncclCommInitRankConfig", (ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)) \
	REQUIRED(ncclResult_t, async_error, "ncclCommGetAsyncError", (ncclComm_t comm, ncclResult_t *result)) \
	REQUIRED(ncclResult_t, finalize, "ncclCommFinalize", (ncclComm_t comm)) \
	REQUIRED(ncclResult_t, destroy, "ncclCommDestroy", (ncclComm_t comm)) \
	REQUIRED(ncclResult_t, abort, "ncclCommAbort", (ncclComm_t comm)) \
	REQUIRED(ncclResult_t, group_start, "ncclGroupStart", (void)) \
	REQUIRED(ncclResult_t, group_end, "ncclGroupEnd", (void)) \
	REQUIRED(ncclResult_t, all_reduce, "ncclAllReduce", (const void *src, void *dst, size_t count, ncclDataType_t kind, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)) \
	REQUIRED(ncclResult_t, reduce, "ncclReduce", (const void *src, void *dst, size_t count, ncclDataType_t kind, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)) \
	REQUIRED(ncclResult_t, broadcast, "ncclBroadcast", (const void *src, void *dst, size_t count, ncclDataType_t kind, int root, ncclComm_t comm, cudaStream_t stream)) \
	REQUIRED(ncclResult_t, all_gather, "ncclAllGather", (const void *src, void *dst, size_t count, ncclDataType_t kind, ncclComm_t comm, cudaStream_t stream)) \
	REQUIRED(ncclResult_t, reduce_scatter, "ncclReduceScatter", (const void *src, void *dst, size_t count, ncclDataType_t kind, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)) \
	REQUIRED(ncclResult_t, send, "ncclSend", (const void *src, size_t count, ncclDataType_t kind, int peer, ncclComm_t comm, cudaStream_t stream)) \
	REQUIRED(ncclResult_t, recv, "ncclRecv", (void *dst, size_t count, ncclDataType_t kind, int peer, ncclComm_t comm, cudaStream_t stream)) \
	OPTIONAL(ncclResult_t, register_memory, "ncclCommRegister", (const ncclComm_t comm, void *at, size_t size, void **handle)) \
	OPTIONAL(ncclResult_t, deregister_memory, "ncclCommDeregister", (const ncclComm_t comm, void *handle)) \
	OPTIONAL(ncclResult_t, register_window, "ncclCommWindowRegister", (ncclComm_t comm, void *at, size_t size, ncclWindow_t *window, int flags)) \
	OPTIONAL(ncclResult_t, deregister_window, "ncclCommWindowDeregister", (ncclComm_t comm, ncclWindow_t window))

#endif
