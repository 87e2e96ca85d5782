// Every symbol of libcuda that this package calls: whether it is required, our
// name for it, the exported symbol with its version, and its parameters. The
// version is spelled out because a symbol's plain name is its oldest revision. Of
// cuStreamGetCaptureInfo and cuGraphExecUpdate the oldest is meant: every driver has it,
// and later ones return nothing else that is needed here.
//
// Optional symbols are newer than the oldest driver that works (11.2). A call
// that needs a missing one returns CUDA_ERROR_NOT_SUPPORTED.
#ifndef CUVMM_SYMBOLS_H
#define CUVMM_SYMBOLS_H

#define CUVMM_SYMBOLS(REQUIRED, OPTIONAL) \
	REQUIRED(init, "cuInit", (unsigned int flags)) \
	REQUIRED(driver_version, "cuDriverGetVersion", (int *version)) \
	REQUIRED(error_name, "cuGetErrorName", (CUresult error, const char **text)) \
	REQUIRED(error_string, "cuGetErrorString", (CUresult error, const char **text)) \
	REQUIRED(device_count, "cuDeviceGetCount", (int *count)) \
	REQUIRED(device_get, "cuDeviceGet", (CUdevice *dev, int ordinal)) \
	REQUIRED(device_name, "cuDeviceGetName", (char *name, int len, CUdevice dev)) \
	REQUIRED(device_uuid, "cuDeviceGetUuid", (CUuuid *uuid, CUdevice dev)) \
	OPTIONAL(device_uuid_mig, "cuDeviceGetUuid_v2", (CUuuid *uuid, CUdevice dev)) \
	REQUIRED(device_memory, "cuDeviceTotalMem_v2", (size_t *bytes, CUdevice dev)) \
	REQUIRED(device_attribute, "cuDeviceGetAttribute", (int *value, CUdevice_attribute attribute, CUdevice dev)) \
	REQUIRED(device_pci, "cuDeviceGetPCIBusId", (char *id, int len, CUdevice dev)) \
	REQUIRED(device_can_access_peer, "cuDeviceCanAccessPeer", (int *can, CUdevice from, CUdevice to)) \
	OPTIONAL(device_p2p, "cuDeviceGetP2PAttribute", (int *value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to)) \
	REQUIRED(primary_state, "cuDevicePrimaryCtxGetState", (CUdevice dev, unsigned int *flags, int *active)) \
	REQUIRED(primary_retain, "cuDevicePrimaryCtxRetain", (CUcontext *ctx, CUdevice dev)) \
	REQUIRED(primary_release, "cuDevicePrimaryCtxRelease_v2", (CUdevice dev)) \
	REQUIRED(ctx_push, "cuCtxPushCurrent_v2", (CUcontext ctx)) \
	REQUIRED(ctx_pop, "cuCtxPopCurrent_v2", (CUcontext *ctx)) \
	OPTIONAL(ctx_id, "cuCtxGetId", (CUcontext ctx, unsigned long long *id)) \
	REQUIRED(ctx_sync, "cuCtxSynchronize", (void)) \
	OPTIONAL(ctx_record_event, "cuCtxRecordEvent", (CUcontext ctx, CUevent event)) \
	REQUIRED(ctx_enable_peer, "cuCtxEnablePeerAccess", (CUcontext peer, unsigned int flags)) \
	REQUIRED(ctx_disable_peer, "cuCtxDisablePeerAccess", (CUcontext peer)) \
	REQUIRED(mem_info, "cuMemGetInfo_v2", (size_t *free, size_t *total)) \
	REQUIRED(mem_granularity, "cuMemGetAllocationGranularity", (size_t *bytes, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)) \
	REQUIRED(mem_reserve, "cuMemAddressReserve", (CUdeviceptr *p, size_t size, size_t align, CUdeviceptr addr, unsigned long long flags)) \
	REQUIRED(mem_address_free, "cuMemAddressFree", (CUdeviceptr p, size_t size)) \
	REQUIRED(mem_create, "cuMemCreate", (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)) \
	REQUIRED(mem_release, "cuMemRelease", (CUmemGenericAllocationHandle handle)) \
	REQUIRED(mem_map, "cuMemMap", (CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)) \
	REQUIRED(mem_unmap, "cuMemUnmap", (CUdeviceptr p, size_t size)) \
	REQUIRED(mem_set_access, "cuMemSetAccess", (CUdeviceptr p, size_t size, const CUmemAccessDesc *desc, size_t count)) \
	REQUIRED(mem_get_access, "cuMemGetAccess", (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr p)) \
	REQUIRED(mem_properties, "cuMemGetAllocationPropertiesFromHandle", (CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)) \
	REQUIRED(mem_export, "cuMemExportToShareableHandle", (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags)) \
	REQUIRED(mem_import, "cuMemImportFromShareableHandle", (CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type)) \
	OPTIONAL(mem_range_handle, "cuMemGetHandleForAddressRange", (void *handle, CUdeviceptr p, size_t size, CUmemRangeHandleType type, unsigned long long flags)) \
	REQUIRED(pointer_attribute, "cuPointerGetAttribute", (void *value, CUpointer_attribute attribute, CUdeviceptr p)) \
	REQUIRED(copy_in, "cuMemcpyHtoDAsync_v2", (CUdeviceptr dst, const void *src, size_t n, CUstream stream)) \
	REQUIRED(copy_out, "cuMemcpyDtoHAsync_v2", (void *dst, CUdeviceptr src, size_t n, CUstream stream)) \
	REQUIRED(copy, "cuMemcpyAsync", (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)) \
	OPTIONAL(copy_peer, "cuMemcpyPeerAsync", (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n, CUstream stream)) \
	REQUIRED(copy_2d, "cuMemcpy2DAsync_v2", (const CUDA_MEMCPY2D *copy, CUstream stream)) \
	REQUIRED(fill8, "cuMemsetD8Async", (CUdeviceptr dst, unsigned char pattern, size_t n, CUstream stream)) \
	REQUIRED(fill16, "cuMemsetD16Async", (CUdeviceptr dst, unsigned short pattern, size_t n, CUstream stream)) \
	REQUIRED(fill32, "cuMemsetD32Async", (CUdeviceptr dst, unsigned int pattern, size_t n, CUstream stream)) \
	REQUIRED(stream_create, "cuStreamCreate", (CUstream *stream, unsigned int flags)) \
	REQUIRED(stream_create_priority, "cuStreamCreateWithPriority", (CUstream *stream, unsigned int flags, int priority)) \
	REQUIRED(stream_priorities, "cuCtxGetStreamPriorityRange", (int *least, int *greatest)) \
	REQUIRED(stream_destroy, "cuStreamDestroy_v2", (CUstream stream)) \
	OPTIONAL(stream_ctx, "cuStreamGetCtx", (CUstream stream, CUcontext *ctx)) \
	REQUIRED(stream_sync, "cuStreamSynchronize", (CUstream stream)) \
	REQUIRED(stream_query, "cuStreamQuery", (CUstream stream)) \
	REQUIRED(stream_is_capturing, "cuStreamIsCapturing", (CUstream stream, CUstreamCaptureStatus *status)) \
	REQUIRED(stream_begin_capture, "cuStreamBeginCapture_v2", (CUstream stream, CUstreamCaptureMode mode)) \
	REQUIRED(stream_end_capture, "cuStreamEndCapture", (CUstream stream, CUgraph *graph)) \
	OPTIONAL(stream_capture_info, "cuStreamGetCaptureInfo", (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)) \
	REQUIRED(graph_destroy, "cuGraphDestroy", (CUgraph graph)) \
	OPTIONAL(graph_instantiate, "cuGraphInstantiateWithFlags", (CUgraphExec *exec, CUgraph graph, unsigned long long flags)) \
	OPTIONAL(graph_update, "cuGraphExecUpdate", (CUgraphExec exec, CUgraph graph, CUgraphNode *node, CUgraphExecUpdateResult *result)) \
	REQUIRED(graph_launch, "cuGraphLaunch", (CUgraphExec exec, CUstream stream)) \
	REQUIRED(graph_exec_destroy, "cuGraphExecDestroy", (CUgraphExec exec)) \
	REQUIRED(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (CUstreamCaptureMode *mode)) \
	REQUIRED(stream_wait_event, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned int flags)) \
	REQUIRED(event_create, "cuEventCreate", (CUevent *event, unsigned int flags)) \
	REQUIRED(event_destroy, "cuEventDestroy_v2", (CUevent event)) \
	REQUIRED(event_record, "cuEventRecord", (CUevent event, CUstream stream)) \
	REQUIRED(event_sync, "cuEventSynchronize", (CUevent event)) \
	REQUIRED(event_query, "cuEventQuery", (CUevent event)) \
	REQUIRED(event_elapsed, "cuEventElapsedTime", (float *ms, CUevent from, CUevent to)) \
	REQUIRED(module_load, "cuModuleLoadDataEx", (CUmodule *module, const void *image, unsigned int count, CUjit_option *options, void **values)) \
	REQUIRED(module_unload, "cuModuleUnload", (CUmodule module)) \
	REQUIRED(module_function, "cuModuleGetFunction", (CUfunction *f, CUmodule module, const char *name)) \
	REQUIRED(function_get, "cuFuncGetAttribute", (int *value, CUfunction_attribute attribute, CUfunction f)) \
	REQUIRED(function_set, "cuFuncSetAttribute", (CUfunction f, CUfunction_attribute attribute, int value)) \
	OPTIONAL(function_param, "cuFuncGetParamInfo", (CUfunction f, size_t i, size_t *offset, size_t *size)) \
	REQUIRED(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", (int *blocks, CUfunction f, int threads, size_t shared)) \
	REQUIRED(occupancy_block, "cuOccupancyMaxPotentialBlockSize", (int *blocks, int *threads, CUfunction f, CUoccupancyB2DSize shared_of, size_t shared, int limit)) \
	REQUIRED(launch, "cuLaunchKernel", (CUfunction f, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **params, void **extra)) \
	OPTIONAL(launch_ex, "cuLaunchKernelEx", (const CUlaunchConfig *config, CUfunction f, void **params, void **extra)) \
	REQUIRED(plain_alloc, "cuMemAlloc_v2", (CUdeviceptr *p, size_t n)) \
	REQUIRED(plain_free, "cuMemFree_v2", (CUdeviceptr p)) \
	OPTIONAL(ipc_get_mem, "cuIpcGetMemHandle", (CUipcMemHandle *handle, CUdeviceptr p)) \
	OPTIONAL(ipc_open_mem, "cuIpcOpenMemHandle_v2", (CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)) \
	OPTIONAL(ipc_close_mem, "cuIpcCloseMemHandle", (CUdeviceptr p)) \
	OPTIONAL(ipc_get_event, "cuIpcGetEventHandle", (CUipcEventHandle *handle, CUevent event)) \
	OPTIONAL(ipc_open_event, "cuIpcOpenEventHandle", (CUevent *event, CUipcEventHandle handle)) \
	OPTIONAL(pool_alloc, "cuMemAllocAsync", (CUdeviceptr *p, size_t n, CUstream stream)) \
	OPTIONAL(pool_free, "cuMemFreeAsync", (CUdeviceptr p, CUstream stream)) \
	OPTIONAL(pool_default, "cuDeviceGetDefaultMemPool", (CUmemoryPool *pool, CUdevice dev)) \
	OPTIONAL(pool_current, "cuDeviceGetMemPool", (CUmemoryPool *pool, CUdevice dev)) \
	OPTIONAL(pool_set_current, "cuDeviceSetMemPool", (CUdevice dev, CUmemoryPool pool)) \
	OPTIONAL(pool_create, "cuMemPoolCreate", (CUmemoryPool *pool, const CUmemPoolProps *props)) \
	OPTIONAL(pool_destroy, "cuMemPoolDestroy", (CUmemoryPool pool)) \
	OPTIONAL(pool_alloc_from, "cuMemAllocFromPoolAsync", (CUdeviceptr *p, size_t n, CUmemoryPool pool, CUstream stream)) \
	OPTIONAL(pool_trim, "cuMemPoolTrimTo", (CUmemoryPool pool, size_t keep)) \
	OPTIONAL(pool_get, "cuMemPoolGetAttribute", (CUmemoryPool pool, CUmemPool_attribute attribute, void *value)) \
	OPTIONAL(pool_set, "cuMemPoolSetAttribute", (CUmemoryPool pool, CUmemPool_attribute attribute, void *value)) \
	OPTIONAL(pool_get_access, "cuMemPoolGetAccess", (CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)) \
	OPTIONAL(pool_set_access, "cuMemPoolSetAccess", (CUmemoryPool pool, const CUmemAccessDesc *desc, size_t count)) \
	OPTIONAL(pool_export, "cuMemPoolExportToShareableHandle", (void *shareable, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags)) \
	OPTIONAL(pool_import, "cuMemPoolImportFromShareableHandle", (CUmemoryPool *pool, void *shareable, CUmemAllocationHandleType type, unsigned long long flags)) \
	OPTIONAL(pool_export_pointer, "cuMemPoolExportPointer", (CUmemPoolPtrExportData *token, CUdeviceptr p)) \
	OPTIONAL(pool_import_pointer, "cuMemPoolImportPointer", (CUdeviceptr *p, CUmemoryPool pool, CUmemPoolPtrExportData *token)) \
	REQUIRED(host_alloc, "cuMemHostAlloc", (void **p, size_t n, unsigned int flags)) \
	REQUIRED(host_free, "cuMemFreeHost", (void *p)) \
	OPTIONAL(wait_value32, "cuStreamWaitValue32_v2", (CUstream stream, CUdeviceptr p, cuuint32_t value, unsigned int flags)) \
	OPTIONAL(wait_value64, "cuStreamWaitValue64_v2", (CUstream stream, CUdeviceptr p, cuuint64_t value, unsigned int flags)) \
	OPTIONAL(write_value32, "cuStreamWriteValue32_v2", (CUstream stream, CUdeviceptr p, cuuint32_t value, unsigned int flags)) \
	OPTIONAL(write_value64, "cuStreamWriteValue64_v2", (CUstream stream, CUdeviceptr p, cuuint64_t value, unsigned int flags))

#endif
