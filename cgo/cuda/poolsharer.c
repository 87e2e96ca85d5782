// Pools, and pointers into them, for other processes. All calls are made in the relaxed
// capture mode, as those that make and destroy pools.
#include "internal.h"

#include <fcntl.h>
#include <stdint.h>
#include <string.h>

cuvmm_value cuvmm_pool_export(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool) {
	int fd = -1;
	CUstreamCaptureMode mode;
	if (api->pool_export == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop_relaxed(api, api->pool_export(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), mode);
	// Unlike that of memory, this descriptor does not close on exec.
	if (r == CUDA_SUCCESS)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	return (cuvmm_value){r, (unsigned long long)fd};
}

cuvmm_value cuvmm_pool_import(cuvmm_lib api, cuvmm_ctx ctx, int fd) {
	CUmemoryPool pool = NULL;
	CUstreamCaptureMode mode;
	if (api->pool_import == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop_relaxed(api, api->pool_import(&pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), mode);
	return (cuvmm_value){r, (uintptr_t)pool};
}

cuvmm_name cuvmm_pool_export_pointer(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr p) {
	cuvmm_name name = {.r = CUDA_ERROR_NOT_SUPPORTED};
	CUmemPoolPtrExportData token = {{0}};
	CUstreamCaptureMode mode;
	if (api->pool_export_pointer == NULL)
		return name;
	name.r = cuvmm_push_relaxed(api, ctx, &mode);
	if (name.r == CUDA_SUCCESS)
		name.r = cuvmm_pop_relaxed(api, api->pool_export_pointer(&token, p), mode);
	memcpy(name.bytes, &token, sizeof token);
	return name;
}

cuvmm_value cuvmm_pool_import_pointer(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool, CUmemPoolPtrExportData token) {
	CUdeviceptr p = 0;
	CUstreamCaptureMode mode;
	if (api->pool_import_pointer == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop_relaxed(api, api->pool_import_pointer(&p, pool, &token), mode);
	return (cuvmm_value){r, p};
}
