// Every symbol of libnccl that this package calls: its result, our name for it, the
// exported symbol, and its parameters; and NCCL's types. The required ones are there from
// 2.18 on. The others came with 2.19 (buffers) and 2.27 (windows).
#ifndef CUVMM_NCCL_SYMBOLS_H
#define CUVMM_NCCL_SYMBOLS_H

#include <limits.h>
#include <stddef.h>

typedef int ncclResult_t;
typedef int ncclDataType_t;
typedef int ncclRedOp_t;
typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct CUstream_st *cudaStream_t;

typedef struct {
	char internal[128];
} ncclUniqueId;

// Results, as NVIDIA numbers them. The Go side has those that decide what kind of
// error a call returns.
enum {
	ncclSuccess = 0,
	ncclUnhandledCudaError = 1,
	ncclSystemError = 2,
	ncclInternalError = 3,
	ncclInvalidArgument = 4,
	ncclInvalidUsage = 5,
	ncclRemoteError = 6,
	ncclInProgress = 7,
};

enum { NCCL_WIN_COLL_SYMMETRIC = 1 };

// Kinds of element and reductions, which the Go side counts in this order.
enum {
	ncclInt8 = 0,
	ncclUint8 = 1,
	ncclInt32 = 2,
	ncclUint32 = 3,
	ncclInt64 = 4,
	ncclUint64 = 5,
	ncclFloat16 = 6,
	ncclFloat32 = 7,
	ncclFloat64 = 8,
	ncclBfloat16 = 9,
	ncclFloat8e4m3 = 10,
	ncclFloat8e5m2 = 11,
};

enum {
	ncclSum = 0,
	ncclProd = 1,
	ncclMax = 2,
	ncclMin = 3,
	ncclAvg = 4,
};

// Version 2.28's. A library takes size bytes of it, and of these what version has.
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
	int trafficClass;
	const char *commName;
	int collnetEnable;
	int CTAPolicy;
	int shrinkShare;
	int nvlsCTAs;
	int nChannelsPerNetPeer;
	int nvlinkCentricSched;
} ncclConfig_t;

// Everything is left to the library.
#define NCCL_CONFIG_INITIALIZER \
	{ \
		.size = sizeof(ncclConfig_t), .magic = 0xcafebeef, .version = 22800, .blocking = INT_MIN, \
		.cgaClusterSize = INT_MIN, .minCTAs = INT_MIN, .maxCTAs = INT_MIN, .netName = NULL, \
		.splitShare = INT_MIN, .trafficClass = INT_MIN, .commName = NULL, .collnetEnable = INT_MIN, \
		.CTAPolicy = INT_MIN, .shrinkShare = INT_MIN, .nvlsCTAs = INT_MIN, \
		.nChannelsPerNetPeer = INT_MIN, .nvlinkCentricSched = INT_MIN, \
	}

#define CUVMM_NCCL_SYMBOLS(REQUIRED, OPTIONAL) \
	REQUIRED(ncclResult_t, version, "ncclGetVersion", (int *version)) \
	REQUIRED(ncclResult_t, unique_id, "ncclGetUniqueId", (ncclUniqueId *id)) \
	REQUIRED(ncclResult_t, init, "ncclCommInitRankConfig", (ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)) \
	REQUIRED(ncclResult_t, split, "ncclCommSplit", (ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config)) \
	REQUIRED(ncclResult_t, finalize, "ncclCommFinalize", (ncclComm_t comm)) \
	REQUIRED(ncclResult_t, destroy, "ncclCommDestroy", (ncclComm_t comm)) \
	REQUIRED(ncclResult_t, abort, "ncclCommAbort", (ncclComm_t comm)) \
	REQUIRED(ncclResult_t, async_error, "ncclCommGetAsyncError", (ncclComm_t comm, ncclResult_t *error)) \
	REQUIRED(const char *, error_string, "ncclGetErrorString", (ncclResult_t result)) \
	REQUIRED(const char *, last_error, "ncclGetLastError", (ncclComm_t comm)) \
	REQUIRED(ncclResult_t, all_reduce, "ncclAllReduce", (const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)) \
	REQUIRED(ncclResult_t, reduce, "ncclReduce", (const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)) \
	REQUIRED(ncclResult_t, broadcast, "ncclBroadcast", (const void *src, void *dst, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)) \
	REQUIRED(ncclResult_t, all_gather, "ncclAllGather", (const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)) \
	REQUIRED(ncclResult_t, reduce_scatter, "ncclReduceScatter", (const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)) \
	REQUIRED(ncclResult_t, send, "ncclSend", (const void *src, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)) \
	REQUIRED(ncclResult_t, recv, "ncclRecv", (void *dst, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)) \
	REQUIRED(ncclResult_t, group_start, "ncclGroupStart", (void)) \
	REQUIRED(ncclResult_t, group_end, "ncclGroupEnd", (void)) \
	OPTIONAL(ncclResult_t, reg, "ncclCommRegister", (const ncclComm_t comm, void *p, size_t size, void **handle)) \
	OPTIONAL(ncclResult_t, dereg, "ncclCommDeregister", (const ncclComm_t comm, void *handle)) \
	OPTIONAL(ncclResult_t, window, "ncclCommWindowRegister", (ncclComm_t comm, void *p, size_t size, ncclWindow_t *window, int flags)) \
	OPTIONAL(ncclResult_t, dewindow, "ncclCommWindowDeregister", (ncclComm_t comm, ncclWindow_t window))

#endif
