// Shared by the C files of this package.
#ifndef CUVMM_INTERNAL_H
#define CUVMM_INTERNAL_H

#include "shims.h"

extern volatile int cuvmm_in_child;

// CUVMM_RETURN_IF_FORKED makes the function return value in a forked child.
// Every shim does so before its first call of libcuda.
#define CUVMM_RETURN_IF_FORKED(value) \
	do { \
		if (cuvmm_in_child) \
			return value; \
	} while (0)

#define CUVMM_FORKED_RESULT ((CUresult)CUVMM_FORKED)
#define CUVMM_FORKED_VALUE ((cuvmm_value){.r = CUVMM_FORKED_RESULT})

// In device.c, for the other files.
CUresult cuvmm_primary_retain(cuvmm_lib api, CUcontext *ctx, int dev);
CUresult cuvmm_push_relaxed(cuvmm_lib api, cuvmm_ctx ctx, CUstreamCaptureMode *mode);
CUresult cuvmm_push_queue(cuvmm_lib api, cuvmm_queue q);
CUresult cuvmm_pop_relaxed(cuvmm_lib api, CUresult r, CUstreamCaptureMode mode);

// In copy.c. It returns INVALID_VALUE for an address that CUDA does not know.
CUresult cuvmm_check_address(cuvmm_lib api, CUdeviceptr p);

#endif
