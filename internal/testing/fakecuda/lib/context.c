// Devices, their primary contexts, and what is current on a thread.
#include "fake.h"

#include <stdio.h>
#include <string.h>

static _Thread_local struct {
	unsigned int generation;
	int depth;
	struct device *at[64];
} stack;

void fresh_thread(unsigned int generation) {
	if (stack.generation == generation)
		return;
	stack.generation = generation;
	stack.depth = 0;
	restore_mode();
}

struct device *current(void) {
	return stack.depth == 0 ? NULL : stack.at[stack.depth - 1];
}

CUresult known_device(CUdevice dev) {
	return dev >= 0 && dev < fake.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult context(struct device **out) {
	if (stack.depth == 0) {
		violate("no context is current");
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	*out = stack.at[stack.depth - 1];
	if ((*out)->retained == 0) {
		violate("the current context is destroyed");
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	}
	if (!(*out)->alive) // no violation: another library has reset it
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return fake.lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

CUresult cu_ctx_push(CUcontext ctx) {
	ENTER(ctx_push, "ctx=%p", (void *)ctx);
	for (int i = 0; i < fake.devices; i++) {
		if (ctx != (CUcontext)&fake.device[i] || fake.device[i].retained == 0)
			continue;
		if (stack.depth == (int)(sizeof stack.at / sizeof stack.at[0])) {
			violate("the stack is full of contexts that were left on it");
			return CUDA_ERROR_INVALID_VALUE;
		}
		stack.at[stack.depth++] = &fake.device[i];
		fake.device[i].pushed++;
		return CUDA_SUCCESS;
	}
	violate("%p is no context that is alive", (void *)ctx);
	return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cu_ctx_pop(CUcontext *ctx) {
	ENTER(ctx_pop, "%s", "");
	if (stack.depth == 0) {
		violate("no context is current");
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	struct device *top = stack.at[--stack.depth];
	top->pushed--;
	if (stack.depth == 0 && restore_mode())
		violate("the thread's capture mode was not restored");
	if (ctx != NULL)
		*ctx = (CUcontext)top;
	return CUDA_SUCCESS;
}


CUresult cu_driver_version(int *version) {
	ENTER(driver_version, "%s", "");
	*version = fake_version;
	return CUDA_SUCCESS;
}

#define ERROR(code, text) {CUDA_##code, "CUDA_" #code, text}
static const struct {
	CUresult code;
	const char *name, *text;
} errors[] = {
	ERROR(SUCCESS, "no error"),
	ERROR(ERROR_INVALID_VALUE, "invalid argument"),
	ERROR(ERROR_OUT_OF_MEMORY, "out of memory"),
	ERROR(ERROR_NOT_INITIALIZED, "not initialized"),
	ERROR(ERROR_STUB_LIBRARY, "a stub library"),
	ERROR(ERROR_NO_DEVICE, "no device"),
	ERROR(ERROR_INVALID_DEVICE, "invalid device"),
	ERROR(ERROR_INVALID_IMAGE, "invalid image"),
	ERROR(ERROR_INVALID_CONTEXT, "invalid context"),
	ERROR(ERROR_NO_BINARY_FOR_GPU, "no code for this architecture"),
	ERROR(ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported"),
	ERROR(ERROR_INVALID_PTX, "invalid PTX"),
	ERROR(ERROR_UNSUPPORTED_PTX_VERSION, "PTX of a newer version"),
	ERROR(ERROR_OPERATING_SYSTEM, "operating system call failed"),
	ERROR(ERROR_INVALID_HANDLE, "invalid handle"),
	ERROR(ERROR_NOT_FOUND, "not found"),
	ERROR(ERROR_NOT_READY, "not ready"),
	ERROR(ERROR_ILLEGAL_ADDRESS, "illegal memory access"),
	ERROR(ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
	ERROR(ERROR_PEER_ACCESS_NOT_ENABLED, "peer access is not enabled"),
	ERROR(ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
	ERROR(ERROR_TOO_MANY_PEERS, "too many peers"),
	ERROR(ERROR_LAUNCH_FAILED, "launch failed"),
	ERROR(ERROR_NOT_PERMITTED, "not permitted"),
	ERROR(ERROR_NOT_SUPPORTED, "not supported"),
	ERROR(ERROR_STREAM_CAPTURE_UNSUPPORTED, "not possible during a capture"),
	ERROR(ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was invalidated"),
	ERROR(ERROR_STREAM_CAPTURE_IMPLICIT, "the legacy stream depends on a capture"),
	ERROR(ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture is of another thread"),
	ERROR(ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the graphs are not alike"),
	ERROR(ERROR_CAPTURED_EVENT, "the event was captured"),
	ERROR(ERROR_UNKNOWN, "unknown error"),
};

static CUresult say(CUresult error, const char **text, bool name) {
	*text = NULL;
	for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
		if (errors[i].code == error)
			*text = name ? errors[i].name : errors[i].text;
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cu_error_name(CUresult error, const char **text) {
	ENTER(error_name, "error=%d", error);
	return say(error, text, true);
}

CUresult cu_error_string(CUresult error, const char **text) {
	ENTER(error_string, "error=%d", error);
	return say(error, text, false);
}

CUresult cu_device_count(int *count) {
	ENTER(device_count, "%s", "");
	*count = fake.devices;
	return CUDA_SUCCESS;
}

CUresult cu_device_get(CUdevice *dev, int ordinal) {
	ENTER(device_get, "ordinal=%d", ordinal);
	TRY(known_device(ordinal));
	*dev = ordinal;
	return CUDA_SUCCESS;
}

CUresult cu_device_name(char *name, int len, CUdevice dev) {
	ENTER(device_name, "len=%d dev=%d", len, dev);
	TRY(known_device(dev));
	snprintf(name, (size_t)len, "Fake GPU %d", dev);
	return CUDA_SUCCESS;
}

static CUresult uuid_of(CUuuid *uuid, CUdevice dev) {
	TRY(known_device(dev));
	memcpy(uuid->bytes, "fake-cuda-uuid-", 15);
	uuid->bytes[15] = (char)dev;
	return CUDA_SUCCESS;
}

CUresult cu_device_uuid(CUuuid *uuid, CUdevice dev) {
	ENTER(device_uuid, "dev=%d", dev);
	return uuid_of(uuid, dev);
}

CUresult cu_device_uuid_mig(CUuuid *uuid, CUdevice dev) {
	ENTER(device_uuid_mig, "dev=%d", dev);
	return uuid_of(uuid, dev);
}

CUresult cu_device_memory(size_t *bytes, CUdevice dev) {
	ENTER(device_memory, "dev=%d", dev);
	TRY(known_device(dev));
	*bytes = fake.device[dev].total;
	return CUDA_SUCCESS;
}

// since is for what drivers have since a version.
static CUresult since(int version) {
	if (fake_version >= version)
		return CUDA_SUCCESS;
	violate("a driver of version %d does not know it", fake_version);
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cu_device_attribute(int *value, CUdevice_attribute attribute, CUdevice dev) {
	ENTER(device_attribute, "attribute=%d dev=%d", attribute, dev);
	TRY(known_device(dev));
	switch ((int)attribute) {
	case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
		*value = 512;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
		*value = 0;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = 9;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = 0;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
		*value = 50 << 20;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
	case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
		*value = 1;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
		*value = 1;
		return since(11020);
	case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES: // of fabric handles it says too much, as measured
		*value = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
		return since(11030);
	case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
		*value = fake_numa_id;
		return fake_numa_id < -1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; // an old driver does not know the attribute
	}
	violate("attribute %d is not known here", attribute);
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cu_device_pci(char *id, int len, CUdevice dev) {
	ENTER(device_pci, "len=%d dev=%d", len, dev);
	TRY(known_device(dev));
	snprintf(id, (size_t)len, "0000:%02x:00.0", dev + 1);
	return CUDA_SUCCESS;
}

CUresult cu_primary_state(CUdevice dev, unsigned int *flags, int *active) {
	ENTER(primary_state, "dev=%d", dev);
	TRY(known_device(dev));
	*flags = 0;
	*active = fake.device[dev].alive;
	return CUDA_SUCCESS;
}

CUresult cu_primary_retain(CUcontext *ctx, CUdevice dev) {
	ENTER(primary_retain, "dev=%d", dev);
	TRY(known_device(dev));
	if (fake.lost)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	struct device *d = &fake.device[dev];
	if (!d->alive) {
		TRY(unsafe_in_capture());
		d->alive = true;
		d->id = ++fake.ids;
	}
	d->retained++;
	*ctx = (CUcontext)d;
	return CUDA_SUCCESS;
}

// destroy ends a device's context.
static void destroy(int dev, bool reset) {
	fake.device[dev].alive = false;
	fake.device[dev].epoch++;
	peers_gone(dev, reset);
}

CUresult cu_primary_release(CUdevice dev) {
	ENTER(primary_release, "dev=%d", dev);
	TRY(known_device(dev));
	struct device *d = &fake.device[dev];
	if (d->retained == 0) {
		violate("device %d's context is not retained", dev);
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	if (d->retained == 1 && d->alive) {
		TRY(unsafe_in_capture());
		if (d->pushed > 0)
			violate("device %d's context is destroyed while a thread has it pushed", dev);
		destroy(dev, false);
	}
	d->retained--;
	return CUDA_SUCCESS;
}

// cu_primary_reset leaves the context retained: each holder must still release it.
CUresult cu_primary_reset(CUdevice dev) {
	ENTER(primary_reset, "dev=%d", dev);
	TRY(known_device(dev));
	if (fake.lost)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	if (fake.device[dev].alive) {
		streams_gone(&fake.device[dev]);
		graphs_gone(&fake.device[dev]);
		modules_gone(&fake.device[dev]);
		plain_gone(dev);
		pools_gone(dev);
		destroy(dev, true);
	}
	return CUDA_SUCCESS;
}

// cu_ctx_id tells the contexts of one address apart.
CUresult cu_ctx_id(CUcontext ctx, unsigned long long *id) {
	ENTER(ctx_id, "ctx=%p", (void *)ctx);
	for (int i = 0; i < fake.devices; i++) {
		if (ctx != (CUcontext)&fake.device[i] || fake.device[i].retained == 0)
			continue;
		*id = fake.device[i].id;
		return fake.device[i].alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
	}
	violate("%p is no context that is retained", (void *)ctx);
	return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cu_mem_info(size_t *free, size_t *total) {
	ENTER(mem_info, "%s", "");
	struct device *d;
	TRY(context(&d));
	sweep();
	*free = d->total - d->used;
	*total = d->total;
	return CUDA_SUCCESS;
}
