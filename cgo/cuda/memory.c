// Addresses and physical memory. None of it needs a context.
#include "internal.h"

#include <string.h>

cuvmm_value cuvmm_granularity(cuvmm_lib api, CUmemAllocationProp prop, int recommended) {
	size_t n = 0;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	CUresult r = api->mem_granularity(
		&n, &prop, recommended ? CU_MEM_ALLOC_GRANULARITY_RECOMMENDED : CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	return (cuvmm_value){r, n};
}

cuvmm_value cuvmm_reserve(cuvmm_lib api, size_t size, size_t align) {
	CUdeviceptr p = 0;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	CUresult r = api->mem_reserve(&p, size, align, 0, 0);
	return (cuvmm_value){r, p};
}

CUresult cuvmm_address_free(cuvmm_lib api, CUdeviceptr p, size_t size) {
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_RESULT);
	return api->mem_address_free(p, size);
}

cuvmm_value cuvmm_create(cuvmm_lib api, size_t size, CUmemAllocationProp prop) {
	CUmemGenericAllocationHandle h = 0;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	CUresult r = api->mem_create(&h, size, &prop, 0);
	return (cuvmm_value){r, h};
}

CUresult cuvmm_release(cuvmm_lib api, CUmemGenericAllocationHandle h) {
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_RESULT);
	return api->mem_release(h);
}

cuvmm_properties_of cuvmm_properties(cuvmm_lib api, CUmemGenericAllocationHandle h) {
	cuvmm_properties_of p;
	memset(&p, 0, sizeof p);
	p.r = CUVMM_FORKED_RESULT;
	CUVMM_RETURN_IF_FORKED(p);
	p.r = api->mem_properties(&p.prop, h);
	return p;
}

CUresult cuvmm_map(cuvmm_lib api, CUdeviceptr p, size_t size, CUmemGenericAllocationHandle h) {
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_RESULT);
	return api->mem_map(p, size, 0, h, 0);
}

CUresult cuvmm_unmap(cuvmm_lib api, CUdeviceptr p, size_t size) {
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_RESULT);
	return api->mem_unmap(p, size);
}
