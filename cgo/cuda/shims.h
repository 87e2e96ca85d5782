// One C function for each call of the driver. A function that needs a context
// pushes it, works and pops it, so that goroutines may change threads between
// calls. Where a function takes two steps and the second fails, it undoes the
// first; any other undo is in Go. Each group of functions is in the C file of
// that name, beside the Go file that calls them.
#ifndef CUVMM_SHIMS_H
#define CUVMM_SHIMS_H

#include "../internal/dl/dl.h"
#include "abi.h"
#include "symbols.h"

// cuvmm_api is one loaded libcuda. An optional symbol that is not there is NULL.
struct cuvmm_api {
#define CUVMM_FIELD(field, symbol, params) CUresult(*field) params;
	CUVMM_SYMBOLS(CUVMM_FIELD, CUVMM_FIELD)
#undef CUVMM_FIELD
};

// CUVMM_FORKED is what every call returns in a forked child: the driver's state
// does not survive a fork. CUDA has no such result. It is not negative, because
// the compiler may take a CUresult for unsigned.
#define CUVMM_FORKED 0x7fffffff

// cuvmm_value is a result and the value that the call returned.
typedef struct {
	CUresult r;
	unsigned long long v;
} cuvmm_value;

typedef struct {
	CUresult r;
	unsigned long long free, total;
} cuvmm_memory;

typedef struct {
	CUresult r;
	char name[128];
	char pci[32];
	unsigned char uuid[16];
	unsigned long long memory;
	int major, minor, cache, unified, mode;
} cuvmm_device;

// cuvmm_ctx is a primary context and its id: a reset gives the next one the same
// address. The id is 0 where the driver has none.
typedef struct {
	CUcontext ctx;
	unsigned long long id;
} cuvmm_ctx;

typedef struct {
	CUresult r;
	cuvmm_ctx ctx;
	CUstream copy_stream;
} cuvmm_context;

// cuvmm_queue is a stream and the context in which work is queued on it. A foreign stream
// is another library's: its own context is current then, which the shim asks for. A copy
// of memory of a pool needs that.
typedef struct {
	cuvmm_ctx ctx;
	CUstream stream;
	int foreign;
} cuvmm_queue;

// cuvmm_pool_and_device is a result, and the pool and the device that memory is of. The
// pool is NULL for memory of none.
typedef struct {
	CUresult r;
	CUmemoryPool pool;
	int device;
} cuvmm_pool_and_device;

// cuvmm_name is a result and the 64 bytes by which other processes know memory or an event.
typedef struct {
	CUresult r;
	unsigned char bytes[64];
} cuvmm_name;

// cuvmm_fabric is a result and a fabric handle.
typedef struct {
	CUresult r;
	CUmemFabricHandle name;
} cuvmm_fabric;

// cuvmm_properties_of is a result and what memory was created with.
typedef struct {
	CUresult r;
	CUmemAllocationProp prop;
} cuvmm_properties_of;

// cuvmm_link is what the driver says of the path between two devices. known is 0
// where the driver has no such call.
typedef struct {
	CUresult r;
	int known, rank, atomics;
} cuvmm_link;

// cuvmm_peer is the outcome of enabling or disabling access to a peer: ctx is the
// peer's primary context, retained reports whether it is still retained.
typedef struct {
	CUresult r;
	cuvmm_ctx ctx;
	int retained;
} cuvmm_peer;

// cuvmm_rows is where rows are: the first at p, each other one pitch bytes behind the
// one before.
typedef struct {
	CUdeviceptr p;
	size_t pitch;
} cuvmm_rows;

// cuvmm_param is a result and where a kernel's parameter is.
typedef struct {
	CUresult r;
	size_t offset, size;
} cuvmm_param;

// cuvmm_function describes a kernel.
typedef struct {
	CUresult r;
	int threads, registers, shared, local, constant, dynamic, ptx, binary;
} cuvmm_function;

// cuvmm_block is a result and the block and grid that occupy a device best.
typedef struct {
	CUresult r;
	int threads, blocks;
} cuvmm_block;

// cuvmm_kernel is what a launch queues, and where. Handles and pointers are numbers, for
// which cgo has no checks to make. A 0 in grid or block counts as 1.
typedef struct {
	uintptr_t api, ctx, f, stream;
	unsigned long long ctx_id;
	unsigned int grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
} cuvmm_kernel;

// cuvmm_attributes is what cuLaunchKernel does not take. All zero: none. Else a 0 in
// the cluster counts as 1.
typedef struct {
	unsigned int cluster_x, cluster_y, cluster_z;
	int cooperative, priority;
} cuvmm_attributes;

// cuvmm_priorities is a result and the range of the streams' priorities.
typedef struct {
	CUresult r;
	int least, greatest;
} cuvmm_priorities;

typedef const struct cuvmm_api *cuvmm_lib;

// In load.c.
extern const struct cuvmm_symbol cuvmm_symbols[];
int cuvmm_watch_fork(void);
CUresult cuvmm_init(cuvmm_lib api);
const char *cuvmm_error_name(cuvmm_lib api, CUresult r);
const char *cuvmm_error_text(cuvmm_lib api, CUresult r);

// In info.c.
cuvmm_value cuvmm_version(cuvmm_lib api);
cuvmm_value cuvmm_device_count(cuvmm_lib api);
cuvmm_device cuvmm_device_info(cuvmm_lib api, int dev);
cuvmm_value cuvmm_attribute(cuvmm_lib api, int attribute, int dev);
cuvmm_value cuvmm_active(cuvmm_lib api, int dev);
cuvmm_value cuvmm_try_ipc(cuvmm_lib api, int dev);

// In device.c.
cuvmm_context cuvmm_open(cuvmm_lib api, int dev);
CUresult cuvmm_primary_release(cuvmm_lib api, int dev);
CUresult cuvmm_check_reset(cuvmm_lib api, cuvmm_ctx ctx);
CUresult cuvmm_push(cuvmm_lib api, cuvmm_ctx ctx);
CUresult cuvmm_pop(cuvmm_lib api, CUresult r);
CUresult cuvmm_sync(cuvmm_lib api, cuvmm_ctx ctx);
CUresult cuvmm_sync_if_active(cuvmm_lib api, int dev);
cuvmm_memory cuvmm_mem_info(cuvmm_lib api, cuvmm_ctx ctx);

// In memory.c.
cuvmm_value cuvmm_granularity(cuvmm_lib api, CUmemAllocationProp prop, int recommended);
cuvmm_value cuvmm_reserve(cuvmm_lib api, size_t size, size_t align);
CUresult cuvmm_address_free(cuvmm_lib api, CUdeviceptr p, size_t size);
cuvmm_value cuvmm_create(cuvmm_lib api, size_t size, CUmemAllocationProp prop);
CUresult cuvmm_release(cuvmm_lib api, CUmemGenericAllocationHandle h);
cuvmm_properties_of cuvmm_properties(cuvmm_lib api, CUmemGenericAllocationHandle h);
CUresult cuvmm_map(cuvmm_lib api, CUdeviceptr p, size_t size, CUmemGenericAllocationHandle h);
CUresult cuvmm_unmap(cuvmm_lib api, CUdeviceptr p, size_t size);

// In access.c.
CUresult cuvmm_set_access(cuvmm_lib api, CUdeviceptr p, size_t size, const CUmemAccessDesc *who, size_t n);
cuvmm_value cuvmm_get_access(cuvmm_lib api, CUdeviceptr p, CUmemLocation who);

// In export.c.
cuvmm_value cuvmm_export(cuvmm_lib api, CUmemGenericAllocationHandle h);
int cuvmm_file_mode(int fd);
cuvmm_value cuvmm_import(cuvmm_lib api, int fd);
cuvmm_value cuvmm_ordinal(cuvmm_lib api, CUdeviceptr p);
cuvmm_value cuvmm_export_range(cuvmm_lib api, int dev, CUdeviceptr p, size_t size, unsigned long long flags);
cuvmm_fabric cuvmm_export_fabric(cuvmm_lib api, CUmemGenericAllocationHandle h);
cuvmm_value cuvmm_import_fabric(cuvmm_lib api, CUmemFabricHandle name);

// In peers.c.
cuvmm_value cuvmm_can_access_peer(cuvmm_lib api, int from, int to);
cuvmm_link cuvmm_peering(cuvmm_lib api, int from, int to);
cuvmm_peer cuvmm_enable_peer(cuvmm_lib api, cuvmm_ctx ctx, int to);
cuvmm_peer cuvmm_disable_peer(cuvmm_lib api, cuvmm_ctx ctx, cuvmm_ctx peer, int to);

// In copy.c.
CUresult cuvmm_copy_in(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr dst, const unsigned char *src, size_t n, CUstream s);
CUresult cuvmm_copy_out(cuvmm_lib api, cuvmm_ctx ctx, unsigned char *dst, CUdeviceptr src, size_t n, CUstream s);
CUresult cuvmm_copy(cuvmm_lib api, cuvmm_queue q, CUdeviceptr dst, CUdeviceptr src, size_t n);
CUresult cuvmm_fill(cuvmm_lib api, cuvmm_queue q, CUdeviceptr dst, unsigned int pattern, int width, size_t n);

// In copypeer.c.
cuvmm_context cuvmm_retain(cuvmm_lib api, int dev);
CUresult cuvmm_copy_peer(cuvmm_lib api, cuvmm_queue q, CUdeviceptr dst, cuvmm_ctx to, int to_dev, CUdeviceptr src, cuvmm_ctx from, int from_dev, size_t n);

// In copy2d.c.
CUresult cuvmm_copy_2d_in(cuvmm_lib api, cuvmm_ctx ctx, cuvmm_rows dst, const unsigned char *src, size_t width, size_t rows, CUstream s);
CUresult cuvmm_copy_2d_out(cuvmm_lib api, cuvmm_ctx ctx, unsigned char *dst, cuvmm_rows src, size_t width, size_t rows, CUstream s);
CUresult cuvmm_copy_2d(cuvmm_lib api, cuvmm_queue q, cuvmm_rows dst, cuvmm_rows src, size_t width, size_t rows);

// In stream.c.
cuvmm_value cuvmm_stream_create(cuvmm_lib api, cuvmm_ctx ctx);
CUresult cuvmm_stream_destroy(cuvmm_lib api, cuvmm_ctx ctx, CUstream s);
CUresult cuvmm_stream_sync(cuvmm_lib api, cuvmm_ctx ctx, CUstream s);
CUresult cuvmm_stream_query(cuvmm_lib api, cuvmm_ctx ctx, CUstream s);
cuvmm_priorities cuvmm_stream_priorities(cuvmm_lib api, cuvmm_ctx ctx);
cuvmm_value cuvmm_stream_create_priority(cuvmm_lib api, cuvmm_ctx ctx, int priority);

// In event.c.
cuvmm_value cuvmm_event_create(cuvmm_lib api, cuvmm_ctx ctx, unsigned int flags);
CUresult cuvmm_event_destroy(cuvmm_lib api, cuvmm_ctx ctx, CUevent e);
CUresult cuvmm_ctx_record(cuvmm_lib api, cuvmm_ctx ctx, CUevent e);
CUresult cuvmm_event_record(cuvmm_lib api, cuvmm_ctx ctx, CUevent e, CUstream s);
CUresult cuvmm_event_wait(cuvmm_lib api, cuvmm_ctx ctx, CUstream s, CUevent e);
CUresult cuvmm_event_sync(cuvmm_lib api, cuvmm_ctx ctx, CUevent e);
CUresult cuvmm_event_query(cuvmm_lib api, cuvmm_ctx ctx, CUevent e);
cuvmm_value cuvmm_event_elapsed(cuvmm_lib api, cuvmm_ctx ctx, CUevent from, CUevent to); // v: bits of a float

// In module.c.
cuvmm_value cuvmm_module_load(cuvmm_lib api, cuvmm_ctx ctx, const unsigned char *image, unsigned int registers, int lines,
                              unsigned char *info, unsigned char *errors, size_t size);
CUresult cuvmm_module_unload(cuvmm_lib api, cuvmm_ctx ctx, CUmodule module);
cuvmm_value cuvmm_module_function(cuvmm_lib api, cuvmm_ctx ctx, CUmodule module, const char *name);
cuvmm_param cuvmm_function_param(cuvmm_lib api, cuvmm_ctx ctx, CUfunction f, size_t i);
cuvmm_function cuvmm_function_info(cuvmm_lib api, cuvmm_ctx ctx, CUfunction f);
CUresult cuvmm_function_set_shared(cuvmm_lib api, cuvmm_ctx ctx, CUfunction f, int n);
cuvmm_value cuvmm_occupancy(cuvmm_lib api, cuvmm_ctx ctx, CUfunction f, int threads, size_t shared);
cuvmm_block cuvmm_occupancy_block(cuvmm_lib api, cuvmm_ctx ctx, CUfunction f, size_t shared);

// In launch.c.
CUresult cuvmm_launch(cuvmm_kernel k, const unsigned char *args, size_t n);
CUresult cuvmm_launch_ex(cuvmm_kernel k, cuvmm_attributes a, const unsigned char *args, size_t n);

// In graph.c.
cuvmm_value cuvmm_stream_capturing(cuvmm_lib api, cuvmm_ctx ctx, CUstream s);
cuvmm_value cuvmm_capture_id(cuvmm_lib api, cuvmm_ctx ctx, CUstream s);
CUresult cuvmm_begin_capture(cuvmm_lib api, cuvmm_ctx ctx, CUstream s, int mode);
cuvmm_value cuvmm_end_capture(cuvmm_lib api, cuvmm_ctx ctx, CUstream s);
CUresult cuvmm_graph_destroy(cuvmm_lib api, cuvmm_ctx ctx, CUgraph graph);
cuvmm_value cuvmm_graph_instantiate(cuvmm_lib api, cuvmm_ctx ctx, CUgraph graph);
CUresult cuvmm_graph_exec_destroy(cuvmm_lib api, cuvmm_ctx ctx, CUgraphExec exec);
CUresult cuvmm_graph_update(cuvmm_lib api, cuvmm_ctx ctx, CUgraphExec exec, CUgraph graph);
CUresult cuvmm_graph_launch(cuvmm_lib api, cuvmm_ctx ctx, CUgraphExec exec, CUstream s);

// In streammemops.c.
CUresult cuvmm_wait_value(cuvmm_lib api, cuvmm_ctx ctx, CUstream s, CUdeviceptr p, unsigned long long v, int width);
CUresult cuvmm_write_value(cuvmm_lib api, cuvmm_ctx ctx, CUstream s, CUdeviceptr p, unsigned long long v, int width);

// In allocator.c.
cuvmm_value cuvmm_plain_alloc(cuvmm_lib api, cuvmm_ctx ctx, size_t n);
CUresult cuvmm_plain_free(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr p);
cuvmm_value cuvmm_pool_alloc(cuvmm_lib api, cuvmm_queue q, size_t n);
CUresult cuvmm_pool_free(cuvmm_lib api, cuvmm_queue q, CUdeviceptr p);

// In pooler.c.
cuvmm_value cuvmm_pool_default(cuvmm_lib api, cuvmm_ctx ctx, int dev);
cuvmm_value cuvmm_pool_current(cuvmm_lib api, cuvmm_ctx ctx, int dev);
CUresult cuvmm_pool_set_current(cuvmm_lib api, cuvmm_ctx ctx, int dev, CUmemoryPool pool);
cuvmm_value cuvmm_pool_create(cuvmm_lib api, cuvmm_ctx ctx, CUmemPoolProps props);
CUresult cuvmm_pool_destroy(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool);
CUresult cuvmm_try_pool(cuvmm_lib api, CUmemPoolProps props);
cuvmm_value cuvmm_pool_alloc_from(cuvmm_lib api, cuvmm_queue q, CUmemoryPool pool, size_t n);
CUresult cuvmm_pool_trim(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool, size_t keep);
cuvmm_value cuvmm_pool_get(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool, int attribute);
CUresult cuvmm_pool_set(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool, int attribute, unsigned long long value);
CUresult cuvmm_pool_set_access(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool, const CUmemAccessDesc *who, size_t n);
cuvmm_value cuvmm_pool_get_access(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool, CUmemLocation who);
cuvmm_pool_and_device cuvmm_pool_of(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr p);

// In legacyipc.c.
cuvmm_name cuvmm_ipc_get_mem(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr p);
cuvmm_value cuvmm_ipc_open_mem(cuvmm_lib api, cuvmm_ctx ctx, CUipcMemHandle handle);
CUresult cuvmm_ipc_close_mem(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr p);
cuvmm_name cuvmm_ipc_get_event(cuvmm_lib api, cuvmm_ctx ctx, CUevent e);
cuvmm_value cuvmm_ipc_open_event(cuvmm_lib api, cuvmm_ctx ctx, CUipcEventHandle handle);

// In poolsharer.c.
cuvmm_value cuvmm_pool_export(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool);
cuvmm_value cuvmm_pool_import(cuvmm_lib api, cuvmm_ctx ctx, int fd);
cuvmm_name cuvmm_pool_export_pointer(cuvmm_lib api, cuvmm_ctx ctx, CUdeviceptr p);
cuvmm_value cuvmm_pool_import_pointer(cuvmm_lib api, cuvmm_ctx ctx, CUmemoryPool pool, CUmemPoolPtrExportData token);

// In hostallocator.c.
cuvmm_value cuvmm_host_alloc(cuvmm_lib api, cuvmm_ctx ctx, size_t n);
CUresult cuvmm_host_free(cuvmm_lib api, cuvmm_ctx ctx, void *p);

#endif
