// Shared by the C files of this package.
#ifndef CUVMM_INTERNAL_H
#define CUVMM_INTERNAL_H

#include "shims.h"

extern volatile int cuvmm_in_child;

// CUVMM_ALIVE leaves the function with answer in a forked child.
#define CUVMM_ALIVE(answer) \
	do { \
		if (cuvmm_in_child) \
			return answer; \
	} while (0)

#define CUVMM_DEAD ((CUresult)CUVMM_FORKED)
#define CUVMM_DEAD_VALUE ((cuvmm_value){.r = CUVMM_DEAD})

#endif
