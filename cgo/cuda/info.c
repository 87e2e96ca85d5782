// What is known of a device, and what a probe asks.
#include "internal.h"

#include <string.h>

cuvmm_value cuvmm_version(cuvmm_lib api) {
	int v = 0;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	CUresult r = api->driver_version(&v);
	return (cuvmm_value){r, (unsigned long long)v};
}

cuvmm_value cuvmm_device_count(cuvmm_lib api) {
	int n = 0;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	CUresult r = api->device_count(&n);
	return (cuvmm_value){r, (unsigned long long)n};
}

cuvmm_device cuvmm_device_info(cuvmm_lib api, int ordinal) {
	cuvmm_device d = {.r = CUVMM_FORKED_RESULT};
	CUdevice dev;
	CUuuid uuid;
	size_t memory = 0;
	CUVMM_RETURN_IF_FORKED(d);
	d.r = api->device_get(&dev, ordinal);
	if (d.r == CUDA_SUCCESS)
		d.r = api->device_name(d.name, sizeof d.name, dev);
	if (d.r == CUDA_SUCCESS)
		d.r = api->device_pci(d.pci, sizeof d.pci, dev);
	if (d.r == CUDA_SUCCESS)
		d.r = api->device_memory(&memory, dev);
	if (d.r == CUDA_SUCCESS) // the first revision returns the card's UUID for a MIG instance
		d.r = api->device_uuid_mig ? api->device_uuid_mig(&uuid, dev) : api->device_uuid(&uuid, dev);
	if (d.r == CUDA_SUCCESS)
		d.r = api->device_attribute(&d.major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev);
	if (d.r == CUDA_SUCCESS)
		d.r = api->device_attribute(&d.minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, dev);
	if (d.r == CUDA_SUCCESS)
		d.r = api->device_attribute(&d.cache, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, dev);
	if (d.r == CUDA_SUCCESS)
		d.r = api->device_attribute(&d.unified, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, dev);
	if (d.r == CUDA_SUCCESS)
		d.r = api->device_attribute(&d.mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, dev);
	if (d.r == CUDA_SUCCESS) {
		d.memory = memory;
		memcpy(d.uuid, uuid.bytes, sizeof d.uuid);
	}
	return d;
}

cuvmm_value cuvmm_attribute(cuvmm_lib api, int attribute, int dev) {
	int v = 0;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	CUresult r = api->device_attribute(&v, (CUdevice_attribute)attribute, dev);
	return (cuvmm_value){r, (unsigned long long)v};
}

cuvmm_value cuvmm_active(cuvmm_lib api, int dev) {
	unsigned int flags = 0;
	int active = 0;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	CUresult r = api->primary_state(dev, &flags, &active);
	return (cuvmm_value){r, (unsigned long long)active};
}

// cuvmm_try_ipc asks for the IPC handle of a little plain memory, if the device's
// primary context is active. v reports whether it tried.
cuvmm_value cuvmm_try_ipc(cuvmm_lib api, int dev) {
	unsigned int flags = 0;
	int active = 0;
	CUcontext ctx;
	CUdeviceptr p;
	CUipcMemHandle handle;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	CUresult r = api->primary_state(dev, &flags, &active);
	if (r != CUDA_SUCCESS || !active)
		return (cuvmm_value){.r = r};
	// Retained, so that the context stays for the call.
	r = cuvmm_primary_retain(api, &ctx, dev);
	if (r != CUDA_SUCCESS)
		return (cuvmm_value){.r = r};
	r = api->ctx_push(ctx);
	if (r == CUDA_SUCCESS) {
		// An allocation would destroy the capture of another thread.
		r = api->exchange_capture_mode(&mode);
		if (r == CUDA_SUCCESS) {
			r = api->plain_alloc(&p, 1);
			if (r == CUDA_SUCCESS) {
				r = api->ipc_get_mem(&handle, p);
				CUresult freed = api->plain_free(p);
				if (r == CUDA_SUCCESS)
					r = freed;
			}
			api->exchange_capture_mode(&mode);
		}
		r = cuvmm_pop(api, r);
	}
	CUresult released = cuvmm_primary_release(api, dev);
	return (cuvmm_value){r != CUDA_SUCCESS ? r : released, 1};
}
