// Who may use mapped memory. None of it needs a context.
#include "internal.h"

CUresult cuvmm_set_access(cuvmm_lib api, CUdeviceptr p, size_t size, const CUmemAccessDesc *who, size_t n) {
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_RESULT);
	return api->mem_set_access(p, size, who, n);
}

cuvmm_value cuvmm_get_access(cuvmm_lib api, CUdeviceptr p, CUmemLocation who) {
	unsigned long long flags = 0;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	CUresult r = api->mem_get_access(&flags, &who, p);
	return (cuvmm_value){r, flags};
}
