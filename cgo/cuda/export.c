// Memory that leaves the process: file descriptors, dma-buf, fabric handles.
#include "internal.h"

#include <linux/fcntl.h>
#include <linux/stat.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

cuvmm_value cuvmm_export(cuvmm_lib api, CUmemGenericAllocationHandle h) {
	int fd = -1;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	CUresult r = api->mem_export(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	return (cuvmm_value){r, (unsigned long long)fd};
}

// cuvmm_file_mode is what the kernel knows of the kind of fd's file, or -1 and errno.
// It does not ask the file system, as fstat would.
int cuvmm_file_mode(int fd) {
	struct statx st;
	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) != 0)
		return -1;
	return st.stx_mode;
}

cuvmm_value cuvmm_import(cuvmm_lib api, int fd) {
	CUmemGenericAllocationHandle h = 0;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	CUresult r = api->mem_import(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	return (cuvmm_value){r, h};
}

cuvmm_value cuvmm_ordinal(cuvmm_lib api, CUdeviceptr p) {
	int dev = -1;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	CUresult r = api->pointer_attribute(&dev, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p);
	return (cuvmm_value){r, (unsigned long long)dev};
}

// cuvmm_export_range retains the device's primary context for the call: this is
// the one call of mapping and sharing that needs a current context.
cuvmm_value cuvmm_export_range(cuvmm_lib api, int dev, CUdeviceptr p, size_t size, unsigned long long flags) {
	int fd = -1;
	CUcontext ctx;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	if (api->mem_range_handle == NULL)
		return (cuvmm_value){.r = CUDA_ERROR_NOT_SUPPORTED};
	CUresult r = cuvmm_primary_retain(api, &ctx, dev);
	if (r != CUDA_SUCCESS)
		return (cuvmm_value){.r = r};
	r = api->ctx_push(ctx);
	if (r == CUDA_SUCCESS)
		r = cuvmm_pop(api, api->mem_range_handle(&fd, p, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, flags));
	CUresult released = cuvmm_primary_release(api, dev);
	if (r == CUDA_SUCCESS)
		r = released;
	if (r != CUDA_SUCCESS && fd >= 0)
		close(fd);
	return (cuvmm_value){r, (unsigned long long)fd};
}

cuvmm_fabric cuvmm_export_fabric(cuvmm_lib api, CUmemGenericAllocationHandle h) {
	cuvmm_fabric f = {.r = CUVMM_FORKED_RESULT};
	CUVMM_RETURN_IF_FORKED(f);
	f.r = api->mem_export(&f.name, h, CU_MEM_HANDLE_TYPE_FABRIC, 0);
	return f;
}

cuvmm_value cuvmm_import_fabric(cuvmm_lib api, CUmemFabricHandle name) {
	CUmemGenericAllocationHandle h = 0;
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_VALUE);
	CUresult r = api->mem_import(&h, &name, CU_MEM_HANDLE_TYPE_FABRIC);
	return (cuvmm_value){r, h};
}
