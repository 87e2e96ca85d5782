// Handles of plain memory and of events for other processes. All calls are made in the
// relaxed capture mode: a capture of another library goes on.
#include "internal.h"

#include <stdint.h>
#include <string.h>

// begins refuses an address inside an allocation: the driver would take it for the whole.
static CUresult begins(cuvmm_lib api, CUdeviceptr p) {
	CUdeviceptr first = 0;
	CUresult r = api->pointer_attribute(&first, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p);
	return r == CUDA_SUCCESS && first != p ? CUDA_ERROR_INVALID_VALUE : r;
}

cuvmm_name cuvmm_ipc_get_mem(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr p) {
	cuvmm_name name = {.r = CUDA_ERROR_NOT_SUPPORTED};
	CUipcMemHandle handle = {{0}};
	CUstreamCaptureMode mode;
	if (api->ipc_get_mem == NULL)
		return name;
	name.r = cuvmm_push_relaxed(api, ctx, &mode);
	if (name.r != CUDA_SUCCESS)
		return name;
	name.r = begins(api, p);
	if (name.r == CUDA_SUCCESS)
		name.r = api->ipc_get_mem(&handle, p);
	name.r = cuvmm_pop_relaxed(api, name.r, mode);
	memcpy(name.bytes, &handle, sizeof handle);
	return name;
}

cuvmm_value cuvmm_ipc_open_mem(cuvmm_lib api, cuvmm_ctx ctx, CUipcMemHandle handle) {
	CUdeviceptr p = 0;
	CUstreamCaptureMode mode;
	if (api->ipc_open_mem == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop_relaxed(api, api->ipc_open_mem(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), mode);
	return (cuvmm_value){r, p};
}

CUresult cuvmm_ipc_close_mem(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr p) {
	CUstreamCaptureMode mode;
	if (api->ipc_close_mem == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	return r != CUDA_SUCCESS ? r : cuvmm_pop_relaxed(api, api->ipc_close_mem(p), mode);
}

cuvmm_name cuvmm_ipc_get_event(cuvmm_lib api, cuvmm_ctx ctx, CUevent e) {
	cuvmm_name name = {.r = CUDA_ERROR_NOT_SUPPORTED};
	CUipcEventHandle handle = {{0}};
	CUstreamCaptureMode mode;
	if (api->ipc_get_event == NULL)
		return name;
	name.r = cuvmm_push_relaxed(api, ctx, &mode);
	if (name.r == CUDA_SUCCESS)
		name.r = cuvmm_pop_relaxed(api, api->ipc_get_event(&handle, e), mode);
	memcpy(name.bytes, &handle, sizeof handle);
	return name;
}

cuvmm_value cuvmm_ipc_open_event(cuvmm_lib api, cuvmm_ctx ctx, CUipcEventHandle handle) {
	CUevent e = NULL;
	CUstreamCaptureMode mode;
	if (api->ipc_open_event == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop_relaxed(api, api->ipc_open_event(&e, handle), mode);
	return (cuvmm_value){r, (uintptr_t)e};
}
