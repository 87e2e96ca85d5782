// Modules, their functions, and what is known of a function.
#include "internal.h"

#include <stdint.h>

// cuvmm_module_load compiles image where it is PTX. Each log has size bytes, all zero.
cuvmm_value cuvmm_module_load(cuvmm_lib api, cuvmm_ctx ctx, const unsigned char *image, unsigned int registers, int lines,
                              unsigned char *info, unsigned char *errors, size_t size) {
	CUmodule module = NULL;
	CUstreamCaptureMode mode;
	// A number goes in place of a pointer.
	CUjit_option options[6] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER,
	                           CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_GENERATE_LINE_INFO};
	void *values[6] = {info, (void *)size, errors, (void *)size, (void *)(intptr_t)lines};
	unsigned int count = 5;
	if (registers != 0) {
		options[count] = CU_JIT_MAX_REGISTERS;
		values[count++] = (void *)(uintptr_t)registers;
	}
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop_relaxed(api, api->module_load(&module, image, count, options, values), mode);
	return (cuvmm_value){r, (uintptr_t)module};
}

CUresult cuvmm_module_unload(cuvmm_lib api, cuvmm_ctx ctx, CUmodule module) {
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	return r != CUDA_SUCCESS ? r : cuvmm_pop_relaxed(api, api->module_unload(module), mode);
}

// The calls below may load the function's code, which drivers of today put off.

cuvmm_value cuvmm_module_function(cuvmm_lib api, cuvmm_ctx ctx, CUmodule module, const char *name) {
	CUfunction f = NULL;
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop_relaxed(api, api->module_function(&f, module, name), mode);
	return (cuvmm_value){r, (uintptr_t)f};
}

cuvmm_param cuvmm_function_param(cuvmm_lib api, cuvmm_ctx ctx, CUfunction f, size_t i) {
	cuvmm_param p = {.r = CUDA_ERROR_NOT_SUPPORTED};
	CUstreamCaptureMode mode;
	if (api->function_param == NULL)
		return p;
	p.r = cuvmm_push_relaxed(api, ctx, &mode);
	if (p.r == CUDA_SUCCESS)
		p.r = cuvmm_pop_relaxed(api, api->function_param(f, i, &p.offset, &p.size), mode);
	return p;
}

cuvmm_function cuvmm_function_info(cuvmm_lib api, cuvmm_ctx ctx, CUfunction f) {
	static const CUfunction_attribute attributes[] = {
		CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, CU_FUNC_ATTRIBUTE_NUM_REGS, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
		CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES,
		CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_PTX_VERSION, CU_FUNC_ATTRIBUTE_BINARY_VERSION,
	};
	cuvmm_function info = {0};
	int *const values[] = {&info.threads, &info.registers, &info.shared, &info.local, &info.constant, &info.dynamic, &info.ptx, &info.binary};
	CUstreamCaptureMode mode;
	info.r = cuvmm_push_relaxed(api, ctx, &mode);
	if (info.r != CUDA_SUCCESS)
		return info;
	for (size_t i = 0; info.r == CUDA_SUCCESS && i < sizeof values / sizeof values[0]; i++)
		info.r = api->function_get(values[i], attributes[i], f);
	info.r = cuvmm_pop_relaxed(api, info.r, mode);
	return info;
}

CUresult cuvmm_function_set_shared(cuvmm_lib api, cuvmm_ctx ctx, CUfunction f, int n) {
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r != CUDA_SUCCESS)
		return r;
	return cuvmm_pop_relaxed(api, api->function_set(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, n), mode);
}

cuvmm_value cuvmm_occupancy(cuvmm_lib api, cuvmm_ctx ctx, CUfunction f, int threads, size_t shared) {
	int blocks = 0;
	CUstreamCaptureMode mode;
	CUresult r = cuvmm_push_relaxed(api, ctx, &mode);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop_relaxed(api, api->occupancy(&blocks, f, threads, shared), mode);
	return (cuvmm_value){r, (unsigned long long)blocks};
}

cuvmm_block cuvmm_occupancy_block(cuvmm_lib api, cuvmm_ctx ctx, CUfunction f, size_t shared) {
	cuvmm_block b = {0};
	CUstreamCaptureMode mode;
	b.r = cuvmm_push_relaxed(api, ctx, &mode);
	if (b.r == CUDA_SUCCESS)
		b.r = cuvmm_pop_relaxed(api, api->occupancy_block(&b.blocks, &b.threads, f, NULL, shared, 0), mode);
	return b;
}
