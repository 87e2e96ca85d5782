// What the C files share.
#ifndef CLOOP_INTERNAL_H
#define CLOOP_INTERNAL_H

#include "cloop.h"

#include "shims.h"

#include <time.h>

struct cloop {
	struct cuvmm_api api;
	void *lib;
	int dev;
	CUcontext ctx;
	CUstream stream;
	CUmemAllocationProp prop;
	CUmemAccessDesc access;
};

// TRY makes the function return the failure of a call.
#define TRY(l, field, ...) \
	do { \
		CUresult r_ = (l)->api.field(__VA_ARGS__); \
		if (r_ != CUDA_SUCCESS) \
			return (cloop_took){.call = #field, .r = (int)r_}; \
	} while (0)

static inline long long now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

#endif
