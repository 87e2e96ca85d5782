//go:build ignore

// Prints how a header lays NCCL's types out and what it numbers them, one fact a line: our
// header's, or with -DNCCL_H='<nccl.h>' NVIDIA's. tools/abi-check-nccl compares the two, and
// leaves out the lines whose name a header does not know.
#ifdef NCCL_H
#include NCCL_H
#else
#include "../symbols.h"
#endif

#include <stddef.h>
#include <stdio.h>

#define SIZE(type) printf("sizeof %s %zu\n", #type, sizeof(type))
#define FIELD(field) \
	printf("offsetof %s %zu sizeof %zu\n", #field, offsetof(ncclConfig_t, field), sizeof(config.field))
#define NUMBER(field) \
	FIELD(field); \
	printf("initial %s %lld\n", #field, (long long)config.field)
#define TEXT(field) \
	FIELD(field); \
	printf("initial %s %s\n", #field, config.field == NULL ? "NULL" : config.field)
#define VALUE(name) printf("%s %lld\n", #name, (long long)(name))

int main(void) {
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	SIZE(ncclUniqueId);
	SIZE(ncclResult_t);
	SIZE(ncclDataType_t);
	SIZE(ncclRedOp_t);
	SIZE(ncclComm_t);
	SIZE(ncclWindow_t);
	SIZE(cudaStream_t);
	VALUE(ncclSuccess);
	VALUE(ncclUnhandledCudaError);
	VALUE(ncclSystemError);
	VALUE(ncclInternalError);
	VALUE(ncclInvalidArgument);
	VALUE(ncclInvalidUsage);
	VALUE(ncclRemoteError);
	VALUE(ncclInProgress);
	VALUE(NCCL_WIN_COLL_SYMMETRIC);
	VALUE(ncclInt8);
	VALUE(ncclUint8);
	VALUE(ncclInt32);
	VALUE(ncclUint32);
	VALUE(ncclInt64);
	VALUE(ncclUint64);
	VALUE(ncclFloat16);
	VALUE(ncclFloat32);
	VALUE(ncclFloat64);
	VALUE(ncclBfloat16);
	VALUE(ncclFloat8e4m3);
	VALUE(ncclFloat8e5m2);
	VALUE(ncclSum);
	VALUE(ncclProd);
	VALUE(ncclMax);
	VALUE(ncclMin);
	VALUE(ncclAvg);
	FIELD(size);
	NUMBER(magic);
	FIELD(version);
	NUMBER(blocking);
	NUMBER(cgaClusterSize);
	NUMBER(minCTAs);
	NUMBER(maxCTAs);
	TEXT(netName);
	NUMBER(splitShare);
	NUMBER(trafficClass);
	TEXT(commName);
	NUMBER(collnetEnable);
	NUMBER(CTAPolicy);
	NUMBER(shrinkShare);
	NUMBER(nvlsCTAs);
	NUMBER(nChannelsPerNetPeer);
	NUMBER(nvlinkCentricSched);
	return 0;
}
