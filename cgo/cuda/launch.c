// Launches of kernels.
#include "internal.h"

static unsigned int at_least_1(unsigned int n) { return n == 0 ? 1 : n; }

static cuvmm_ctx context(cuvmm_kernel k) { return (cuvmm_ctx){(CUcontext)k.ctx, k.ctx_id}; }

// cuvmm_launch queues a kernel. The driver has copied args, n bytes, when it returns.
// For a kernel without parameters there is no buffer at all.
CUresult cuvmm_launch(cuvmm_kernel k, const unsigned char *args, size_t n) {
	cuvmm_lib api = (cuvmm_lib)k.api;
	void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)args, (void *)CU_LAUNCH_PARAM_BUFFER_SIZE, &n,
	                 (void *)CU_LAUNCH_PARAM_END};
	CUresult r = cuvmm_push(api, context(k));
	if (r != CUDA_SUCCESS)
		return r;
	r = api->launch((CUfunction)k.f, at_least_1(k.grid_x), at_least_1(k.grid_y), at_least_1(k.grid_z), at_least_1(k.block_x),
	                at_least_1(k.block_y), at_least_1(k.block_z), k.shared, (CUstream)k.stream, NULL, n == 0 ? NULL : extra);
	return cuvmm_pop(api, r);
}

// cuvmm_launch_ex is cuvmm_launch with attributes.
CUresult cuvmm_launch_ex(cuvmm_kernel k, cuvmm_attributes a, const unsigned char *args, size_t n) {
	cuvmm_lib api = (cuvmm_lib)k.api;
	void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)args, (void *)CU_LAUNCH_PARAM_BUFFER_SIZE, &n,
	                 (void *)CU_LAUNCH_PARAM_END};
	CUlaunchAttribute attributes[3] = {0};
	CUlaunchConfig config = {
		.gridDimX = at_least_1(k.grid_x), .gridDimY = at_least_1(k.grid_y), .gridDimZ = at_least_1(k.grid_z),
		.blockDimX = at_least_1(k.block_x), .blockDimY = at_least_1(k.block_y), .blockDimZ = at_least_1(k.block_z),
		.sharedMemBytes = k.shared, .hStream = (CUstream)k.stream, .attrs = attributes,
	};
	if (api->launch_ex == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (a.cluster_x != 0 || a.cluster_y != 0 || a.cluster_z != 0) {
		CUlaunchAttribute *cluster = &attributes[config.numAttrs++];
		cluster->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
		cluster->value.clusterDim.x = at_least_1(a.cluster_x);
		cluster->value.clusterDim.y = at_least_1(a.cluster_y);
		cluster->value.clusterDim.z = at_least_1(a.cluster_z);
	}
	if (a.cooperative)
		attributes[config.numAttrs++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
	if (a.priority != 0)
		attributes[config.numAttrs++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value.priority = a.priority};
	CUresult r = cuvmm_push(api, context(k));
	return r != CUDA_SUCCESS ? r : cuvmm_pop(api, api->launch_ex(&config, (CUfunction)k.f, NULL, n == 0 ? NULL : extra));
}
