// A small NVML for tests: three GPUs, of which 0 and 1 have NVLinks to each other and 2
// has only PCIe, and a MIG instance of GPU 2. FAKE_NVML_FAIL names functions that
// return FAKE_NVML_CODE, which is "not supported" if it is not set.
// The header is the one of go-nvml, in which a handle is a struct.
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nvmlDevice_st {
	const char *uuid;
	unsigned int bus;
	struct nvmlDevice_st *parent;
};

static struct nvmlDevice_st devices[4] = {
	{"GPU-0", 0x10, NULL}, {"GPU-1", 0x20, NULL}, {"GPU-2", 0x30, NULL}, {"MIG-0", 0x30, &devices[2]},
};
static int users; // Init without Shutdown

static nvmlReturn_t fails(const char *name) {
	const char *which = getenv("FAKE_NVML_FAIL"), *code = getenv("FAKE_NVML_CODE");
	if (which == NULL || strcmp(which, name) != 0)
		return users > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
	return code != NULL && *code != '\0' ? (nvmlReturn_t)atoi(code) : NVML_ERROR_NOT_SUPPORTED;
}

#define BEGIN(device)                            \
	nvmlReturn_t failed = fails(__func__);   \
	(void)(device);                          \
	if (failed != NVML_SUCCESS)              \
	return failed

// A MIG instance has none of its GPU's values.
#define BEGIN_GPU(device)                        \
	BEGIN(device);                           \
	if ((device).handle->parent != NULL)            \
	return NVML_ERROR_NOT_SUPPORTED

nvmlReturn_t nvmlInit_v2(void) {
	users++;
	nvmlReturn_t failed = fails(__func__);
	if (failed != NVML_SUCCESS)
		users--;
	return failed;
}

nvmlReturn_t nvmlShutdown(void) {
	BEGIN(0);
	users--;
	return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t r) {
	static char text[32];
	snprintf(text, sizeof text, r == NVML_ERROR_NOT_SUPPORTED ? "Not Supported" : "error %d", (int)r);
	return text;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
	BEGIN(0);
	snprintf(version, length, "570.86");
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
	BEGIN(0);
	for (int i = 0; i < 4; i++)
		if (strcmp(uuid, devices[i].uuid) == 0) {
			device->handle = &devices[i];
			return NVML_SUCCESS;
		}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pci, nvmlDevice_t *device) {
	char text[32];
	BEGIN(0);
	for (int i = 0; i < 3; i++) {
		snprintf(text, sizeof text, "0000:%02x:00.0", devices[i].bus);
		if (strcmp(pci, text) == 0) {
			device->handle = &devices[i];
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
	BEGIN(mig);
	device->handle = mig.handle->parent;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
	BEGIN_GPU(device);
	memset(pci, 0, sizeof *pci);
	pci->bus = device.handle->bus;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) {
	BEGIN_GPU(device);
	*clock = type == NVML_CLOCK_SM ? 345 : 2619;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) {
	BEGIN_GPU(device);
	*clock = type == NVML_CLOCK_SM ? 1980 : 3201;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius) {
	BEGIN_GPU(device);
	if (sensor != NVML_TEMPERATURE_GPU)
		return NVML_ERROR_INVALID_ARGUMENT;
	*celsius = 41;
	return NVML_SUCCESS;
}

// Functions that return one number of a GPU.
#define NUMBER(name, kind, number)                          \
	nvmlReturn_t name(nvmlDevice_t device, kind *out) { \
		BEGIN_GPU(device);                          \
		*out = (number);                            \
		return NVML_SUCCESS;                        \
	}

NUMBER(nvmlDeviceGetPowerUsage, unsigned int, 118500)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, 700000)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 4 | 64)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 1)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, 4)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, 8)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, 16)
NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending) {
	BEGIN_GPU(device);
	*current = NVML_FEATURE_ENABLED;
	*pending = NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t *info) {
	BEGIN_GPU(device);
	info->isC2cEnabled = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
	(void)device;
	*memory = (nvmlMemory_t){.total = 80ull << 30, .free = 70ull << 30, .used = 10ull << 30};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *u) {
	BEGIN_GPU(device);
	u->gpu = 12;
	u->memory = 3;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *list) {
	BEGIN(device);
	if (*count < 2) {
		*count = 2;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	*count = 2;
	memset(list, 0, 2 * sizeof *list);
	list[0].pid = 4000000001;
	list[0].usedGpuMemory = 1 << 20;
	list[1].pid = 4000000002;
	list[1].usedGpuMemory = device.handle->parent != NULL ? ~0ull : 2 << 20;
	return NVML_SUCCESS;
}

// GPU 0 has three links up and GPU 1 two. FAKE_NVML_SWITCH puts a switch between them.
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *up) {
	BEGIN_GPU(device);
	if (device.handle == &devices[2])
		return NVML_ERROR_NOT_SUPPORTED;
	if (link >= 4)
		return NVML_ERROR_INVALID_ARGUMENT;
	*up = link < (device.handle == &devices[0] ? 3u : 2u) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
	BEGIN_GPU(device);
	memset(pci, 0, sizeof *pci);
	pci->bus = getenv("FAKE_NVML_SWITCH") != NULL ? 0x77 : link == 2 ? 0x99 : device.handle == &devices[0] ? 0x20 : 0x10;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t of, nvmlGpuP2PStatus_t *status) {
	BEGIN_GPU(a);
	*status = a.handle == &devices[2] || b.handle == &devices[2] ? NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED : NVML_P2P_STATUS_OK;
	if (of == NVML_P2P_CAPS_INDEX_NVLINK && *status != NVML_P2P_STATUS_OK)
		*status = NVML_P2P_STATUS_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *level) {
	BEGIN_GPU(a);
	*level = b.handle == &devices[2] ? NVML_TOPOLOGY_SYSTEM : NVML_TOPOLOGY_HOSTBRIDGE;
	return NVML_SUCCESS;
}
