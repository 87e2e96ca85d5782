// Words of memory that a stream writes or waits for.
#include "internal.h"

#include <stdint.h>

CUresult cuvmm_wait_value(cuvmm_lib api, cuvmm_ctx ctx, CUstream s, CUdeviceptr p, unsigned long long v, int width) {
	if (api->wait_value32 == NULL || api->wait_value64 == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = cuvmm_push(api, ctx);
	if (r != CUDA_SUCCESS)
		return r;
	if (width == 4)
		r = api->wait_value32(s, p, (cuuint32_t)v, CU_STREAM_WAIT_VALUE_GEQ);
	else
		r = api->wait_value64(s, p, v, CU_STREAM_WAIT_VALUE_GEQ);
	return cuvmm_pop(api, r);
}

CUresult cuvmm_write_value(cuvmm_lib api, cuvmm_ctx ctx, CUstream s, CUdeviceptr p, unsigned long long v, int width) {
	if (api->write_value32 == NULL || api->write_value64 == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = cuvmm_push(api, ctx);
	if (r != CUDA_SUCCESS)
		return r;
	if (width == 4)
		r = api->write_value32(s, p, (cuuint32_t)v, CU_STREAM_WRITE_VALUE_DEFAULT);
	else
		r = api->write_value64(s, p, v, CU_STREAM_WRITE_VALUE_DEFAULT);
	return cuvmm_pop(api, r);
}
