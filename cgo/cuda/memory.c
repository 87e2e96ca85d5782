// Calls that need no context.
#include "internal.h"

#include <stdint.h>
#include <string.h>

CUresult cuvmm_init(cuvmm_lib api) {
	CUVMM_ALIVE(CUVMM_DEAD);
	return api->init(0);
}

cuvmm_value cuvmm_version(cuvmm_lib api) {
	int v = 0;
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	CUresult r = api->driver_version(&v);
	return (cuvmm_value){r, (unsigned long long)v};
}

const char *cuvmm_error_name(cuvmm_lib api, CUresult r) {
	const char *text = NULL;
	return api->error_name(r, &text) == CUDA_SUCCESS ? text : NULL;
}

const char *cuvmm_error_text(cuvmm_lib api, CUresult r) {
	const char *text = NULL;
	return api->error_string(r, &text) == CUDA_SUCCESS ? text : NULL;
}

cuvmm_value cuvmm_device_count(cuvmm_lib api) {
	int n = 0;
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	CUresult r = api->device_count(&n);
	return (cuvmm_value){r, (unsigned long long)n};
}

cuvmm_device cuvmm_device_info(cuvmm_lib api, int ordinal) {
	cuvmm_device d = {.r = CUVMM_DEAD};
	CUdevice dev;
	CUuuid uuid;
	size_t memory = 0;
	CUVMM_ALIVE(d);
	d.r = api->device_get(&dev, ordinal);
	if (d.r == CUDA_SUCCESS)
		d.r = api->device_name(d.name, sizeof d.name, dev);
	if (d.r == CUDA_SUCCESS)
		d.r = api->device_pci(d.pci, sizeof d.pci, dev);
	if (d.r == CUDA_SUCCESS)
		d.r = api->device_memory(&memory, dev);
	if (d.r == CUDA_SUCCESS) // the first revision gives a MIG instance its card's UUID
		d.r = api->device_uuid_mig ? api->device_uuid_mig(&uuid, dev) : api->device_uuid(&uuid, dev);
	if (d.r == CUDA_SUCCESS)
		d.r = api->device_attribute(&d.major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev);
	if (d.r == CUDA_SUCCESS)
		d.r = api->device_attribute(&d.minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, dev);
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
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	CUresult r = api->device_attribute(&v, (CUdevice_attribute)attribute, dev);
	return (cuvmm_value){r, (unsigned long long)v};
}

cuvmm_value cuvmm_can_access_peer(cuvmm_lib api, int from, int to) {
	int can = 0;
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	CUresult r = api->device_can_access_peer(&can, from, to);
	return (cuvmm_value){r, (unsigned long long)can};
}

cuvmm_link cuvmm_peering(cuvmm_lib api, int from, int to) {
	cuvmm_link l = {.r = CUVMM_DEAD};
	CUVMM_ALIVE(l);
	l.r = CUDA_SUCCESS;
	if (api->device_p2p == NULL)
		return l;
	l.told = 1;
	l.r = api->device_p2p(&l.rank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, from, to);
	if (l.r == CUDA_SUCCESS)
		l.r = api->device_p2p(&l.atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, from, to);
	return l;
}

cuvmm_value cuvmm_granularity(cuvmm_lib api, CUmemAllocationProp prop, int recommended) {
	size_t n = 0;
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	CUresult r = api->mem_granularity(
		&n, &prop, recommended ? CU_MEM_ALLOC_GRANULARITY_RECOMMENDED : CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	return (cuvmm_value){r, n};
}

cuvmm_value cuvmm_reserve(cuvmm_lib api, size_t size, size_t align) {
	CUdeviceptr p = 0;
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	CUresult r = api->mem_reserve(&p, size, align, 0, 0);
	return (cuvmm_value){r, p};
}

CUresult cuvmm_address_free(cuvmm_lib api, CUdeviceptr p, size_t size) {
	CUVMM_ALIVE(CUVMM_DEAD);
	return api->mem_address_free(p, size);
}

cuvmm_value cuvmm_create(cuvmm_lib api, size_t size, CUmemAllocationProp prop) {
	CUmemGenericAllocationHandle h = 0;
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	CUresult r = api->mem_create(&h, size, &prop, 0);
	return (cuvmm_value){r, h};
}

CUresult cuvmm_release(cuvmm_lib api, CUmemGenericAllocationHandle h) {
	CUVMM_ALIVE(CUVMM_DEAD);
	return api->mem_release(h);
}

CUresult cuvmm_map(cuvmm_lib api, CUdeviceptr p, size_t size, CUmemGenericAllocationHandle h) {
	CUVMM_ALIVE(CUVMM_DEAD);
	return api->mem_map(p, size, 0, h, 0);
}

CUresult cuvmm_unmap(cuvmm_lib api, CUdeviceptr p, size_t size) {
	CUVMM_ALIVE(CUVMM_DEAD);
	return api->mem_unmap(p, size);
}

CUresult cuvmm_set_access(cuvmm_lib api, CUdeviceptr p, size_t size, const CUmemAccessDesc *who, size_t n) {
	CUVMM_ALIVE(CUVMM_DEAD);
	return api->mem_set_access(p, size, who, n);
}

cuvmm_value cuvmm_get_access(cuvmm_lib api, CUdeviceptr p, CUmemLocation who) {
	unsigned long long flags = 0;
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	CUresult r = api->mem_get_access(&flags, &who, p);
	return (cuvmm_value){r, flags};
}

cuvmm_place cuvmm_location(cuvmm_lib api, CUmemGenericAllocationHandle h) {
	CUmemAllocationProp prop;
	cuvmm_place p = {.r = CUVMM_DEAD};
	CUVMM_ALIVE(p);
	memset(&prop, 0, sizeof prop);
	p.r = api->mem_properties(&prop, h);
	p.at = prop.location;
	return p;
}

cuvmm_value cuvmm_export(cuvmm_lib api, CUmemGenericAllocationHandle h) {
	int fd = -1;
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	CUresult r = api->mem_export(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	return (cuvmm_value){r, (unsigned long long)fd};
}

cuvmm_value cuvmm_import(cuvmm_lib api, int fd) {
	CUmemGenericAllocationHandle h = 0;
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	CUresult r = api->mem_import(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	return (cuvmm_value){r, h};
}

cuvmm_fabric cuvmm_export_fabric(cuvmm_lib api, CUmemGenericAllocationHandle h) {
	cuvmm_fabric f = {.r = CUVMM_DEAD};
	CUVMM_ALIVE(f);
	f.r = api->mem_export(&f.name, h, CU_MEM_HANDLE_TYPE_FABRIC, 0);
	return f;
}

cuvmm_value cuvmm_import_fabric(cuvmm_lib api, CUmemFabricHandle name) {
	CUmemGenericAllocationHandle h = 0;
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	CUresult r = api->mem_import(&h, &name, CU_MEM_HANDLE_TYPE_FABRIC);
	return (cuvmm_value){r, h};
}

cuvmm_value cuvmm_ordinal(cuvmm_lib api, CUdeviceptr p) {
	int dev = -1;
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	CUresult r = api->pointer_attribute(&dev, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p);
	return (cuvmm_value){r, (unsigned long long)dev};
}

cuvmm_value cuvmm_active(cuvmm_lib api, int dev) {
	unsigned int flags = 0;
	int active = 0;
	CUVMM_ALIVE(CUVMM_DEAD_VALUE);
	CUresult r = api->primary_state(dev, &flags, &active);
	return (cuvmm_value){r, (unsigned long long)active};
}
