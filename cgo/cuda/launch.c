// Launches of kernels.
#include "internal.h"

static unsigned int at_least_1(unsigned int n) { return n == 0 ? 1 : n; }

// cuvmm_launch queues a kernel. The driver has copied args, n bytes, when it returns.
// For a kernel without parameters there is no buffer at all.
CUresult cuvmm_launch(cuvmm_lib api, cuvmm_ctx ctx, CUfunction f, cuvmm_shape shape, const unsigned char *args, size_t n, CUstream s) {
	void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)args, (void *)CU_LAUNCH_PARAM_BUFFER_SIZE, &n,
	                 (void *)CU_LAUNCH_PARAM_END};
	CUresult r = cuvmm_push(api, ctx);
	if (r != CUDA_SUCCESS)
		return r;
	return cuvmm_pop(api, api->launch(f, at_least_1(shape.grid_x), at_least_1(shape.grid_y), at_least_1(shape.grid_z),
		at_least_1(shape.block_x), at_least_1(shape.block_y), at_least_1(shape.block_z), shape.shared, s, NULL, n == 0 ? NULL : extra));
}

// cuvmm_launch_ex is cuvmm_launch with attributes.
CUresult cuvmm_launch_ex(cuvmm_lib api, cuvmm_ctx ctx, CUfunction f, cuvmm_shape shape, cuvmm_attributes a, const unsigned char *args,
                         size_t n, CUstream s) {
	void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)args, (void *)CU_LAUNCH_PARAM_BUFFER_SIZE, &n,
	                 (void *)CU_LAUNCH_PARAM_END};
	CUlaunchAttribute attributes[3] = {0};
	CUlaunchConfig config = {
		.gridDimX = at_least_1(shape.grid_x), .gridDimY = at_least_1(shape.grid_y), .gridDimZ = at_least_1(shape.grid_z),
		.blockDimX = at_least_1(shape.block_x), .blockDimY = at_least_1(shape.block_y), .blockDimZ = at_least_1(shape.block_z),
		.sharedMemBytes = shape.shared, .hStream = s, .attrs = attributes,
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
	CUresult r = cuvmm_push(api, ctx);
	return r != CUDA_SUCCESS ? r : cuvmm_pop(api, api->launch_ex(&config, f, NULL, n == 0 ? NULL : extra));
}
