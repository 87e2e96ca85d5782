// Calls the fake driver as no binding should, and checks that it notices.
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)
#define OK(call) CHECK((call) == CUDA_SUCCESS)

static const CUmemAllocationProp shared = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
};

static const CUmemPoolProps pool_props = {
	.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
};

static const char code[] = "// params fill_bytes 8 8 4\n.entry fill_bytes(\n.entry empty(\n";

static CUcontext push(int dev) {
	CUcontext ctx;
	OK(cu_primary_retain(&ctx, dev));
	OK(cu_ctx_push(ctx));
	return ctx;
}

// mapped is a granule of device 0 that it may read and write.
static CUdeviceptr mapped(void) {
	CUmemGenericAllocationHandle h;
	CUdeviceptr p;
	CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	OK(cu_mem_reserve(&p, GRANULE, 0, 0, 0));
	OK(cu_mem_create(&h, GRANULE, &shared, 0));
	OK(cu_mem_map(p, GRANULE, 0, h, 0));
	OK(cu_mem_set_access(p, GRANULE, &desc, 1));
	OK(cu_mem_release(h));
	return p;
}

// said checks that this violation was found and no other, and resets.
static void said(const char *what) {
	char *text = fake_violations();
	if (strstr(text, what) == NULL || strchr(text, '\n') != text + strlen(text) - 1) {
		fprintf(stderr, "violations are\n%swhere \"%s\" was to be\n", text, what);
		exit(1);
	}
	free(text);
	fake_reset();
}

static void wrong(void) {
	size_t n;
	CUdeviceptr p;
	CUcontext ctx;
	CUstream s;
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp prop = shared;

	CHECK(cu_mem_info(&n, &n) == CUDA_ERROR_INVALID_CONTEXT);
	said("cuMemGetInfo_v2: no context is current");
	CHECK(cu_ctx_pop(&ctx) == CUDA_ERROR_INVALID_CONTEXT);
	said("cuCtxPopCurrent_v2: no context is current");
	CHECK(cu_primary_release(0) == CUDA_ERROR_INVALID_CONTEXT);
	said("not retained");
	push(0);
	said("1 contexts are left pushed");
	push(0);
	CHECK(cu_mem_map(0, GRANULE, 0, 0, 1) == CUDA_ERROR_INVALID_VALUE);
	OK(cu_ctx_pop(NULL));
	said("cuMemMap: flags are 1");
	CHECK(cu_old_plain_alloc() == CUDA_ERROR_UNKNOWN);
	said("cuMemAlloc: wrong version called");
	prop.allocFlags.reserved[3] = 1;
	CHECK(cu_mem_create(&h, GRANULE, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
	said("a reserved field is not zero");

	push(0);
	OK(cu_stream_create(&s, CU_STREAM_NON_BLOCKING));
	OK(cu_stream_destroy(s));
	CHECK(cu_stream_sync(s) == CUDA_ERROR_INVALID_HANDLE);
	OK(cu_ctx_pop(NULL));
	said("does not exist");
	push(0);
	OK(cu_stream_create(&s, CU_STREAM_NON_BLOCKING));
	OK(cu_ctx_pop(NULL));
	push(1);
	CHECK(cu_stream_sync(s) == CUDA_ERROR_INVALID_HANDLE);
	OK(cu_ctx_pop(NULL));
	said("is of another context");
	push(0);
	p = mapped();
	CHECK(cu_wait_value32(NULL, p, 1, 0) == CUDA_ERROR_UNKNOWN);
	OK(cu_ctx_pop(NULL));
	said("for ever");
	push(0);
	p = mapped();
	CHECK(cu_copy(p, (CUdeviceptr)&p, 1, NULL) == CUDA_ERROR_INVALID_VALUE);
	OK(cu_ctx_pop(NULL));
	said("it would be taken for memory of the host");
	push(0);
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	OK(cu_exchange_capture_mode(&mode));
	OK(cu_ctx_pop(NULL));
	said("capture mode was not restored");
	CHECK(cu_ctx_enable_peer(NULL, 0) == CUDA_ERROR_INVALID_CONTEXT);
	said("cuCtxEnablePeerAccess: no context is current");
	push(0);
	CHECK(cu_ctx_enable_peer((CUcontext)&fake.device[1], 0) == CUDA_ERROR_INVALID_CONTEXT);
	OK(cu_ctx_pop(NULL));
	said("is no context that is alive");
	push(0);
	OK(cu_primary_retain(&ctx, 1));
	CHECK(cu_ctx_enable_peer(ctx, 1) == CUDA_ERROR_INVALID_VALUE);
	OK(cu_ctx_pop(NULL));
	said("cuCtxEnablePeerAccess: flags are 1");
	push(0);
	OK(cu_primary_retain(&ctx, 1));
	OK(cu_ctx_enable_peer(ctx, 0));
	OK(cu_primary_release(1));
	OK(cu_ctx_pop(NULL));
	said("device 1's context is destroyed while device 0 has access to its memory");
}

static void faults(void) {
	CUdeviceptr p;
	CHECK(fake_fail("cuMemNap", 1, 2) < 0);
	CHECK(fake_fail("cuMemAddressReserve", 0, 2) < 0);
	OK(fake_fail("cuMemAddressReserve", 2, CUDA_ERROR_OUT_OF_MEMORY));
	OK(cu_mem_reserve(&p, GRANULE, 0, 0, 0));
	CHECK(cu_mem_reserve(&p, GRANULE, 0, 0, 0) == CUDA_ERROR_OUT_OF_MEMORY);
	OK(cu_mem_reserve(&p, GRANULE, 0, 0, 0));
	OK(fake_fail("", 1, CUDA_ERROR_UNKNOWN));
	CHECK(cu_mem_address_free(p, GRANULE) == CUDA_ERROR_UNKNOWN);
	OK(cu_mem_address_free(p, GRANULE));
	CHECK(fake_calls("cuMemAddressReserve") == 3);
	CHECK(fake_calls("") == 5);
	CHECK(fake_calls("cuMemNap") == -1);
	char want[64], *last = fake_last("cuMemAddressFree");
	snprintf(want, sizeof want, "cuMemAddressFree p=%#llx size=2097152", p);
	CHECK(strcmp(last, want) == 0);
	free(last);
	CHECK(fake_last("cuMemMap") == NULL);
	fake_reset();
	CHECK(fake_calls("") == 0);
}

// On a lost device only memory can be freed.
static void lost(void) {
	size_t n;
	CUstream s;
	push(0);
	CUdeviceptr p = mapped();
	OK(cu_stream_create(&s, CU_STREAM_NON_BLOCKING));
	fake_lose();
	CHECK(cu_ctx_sync() == CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK(cu_mem_info(&n, &n) == CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK(cu_stream_destroy(s) == CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(cu_mem_unmap(p, GRANULE));
	OK(cu_mem_address_free(p, GRANULE));
	OK(cu_ctx_pop(NULL));
	OK(cu_primary_release(0));
	struct fake_count none = {0}, now;
	fake_live(&now);
	CHECK(memcmp(&none, &now, sizeof now) == 0);
	fake_reset();
}

// Access to a peer is of one direction, once, and counted until it is disabled.
static void peers(void) {
	int n;
	CUcontext zero = push(0), one = push(1);
	struct fake_count now;
	OK(cu_ctx_enable_peer(zero, 0));
	CHECK(cu_ctx_enable_peer(zero, 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	CHECK(cu_ctx_enable_peer(one, 0) == CUDA_ERROR_INVALID_CONTEXT);
	OK(cu_ctx_pop(NULL));
	CHECK(cu_ctx_disable_peer(one) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
	fake_link(0, 1, FAKE_NO_PATH);
	OK(cu_device_can_access_peer(&n, 0, 1));
	CHECK(n == 0);
	CHECK(cu_ctx_enable_peer(one, 0) == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
	OK(cu_ctx_pop(NULL));
	fake_live(&now);
	CHECK(now.peers == 1);
	OK(cu_primary_release(1));
	fake_live(&now);
	CHECK(now.peers == 1); // it was never disabled
	fake_reset();
	fake_live(&now);
	CHECK(now.peers == 0);
	OK(cu_device_can_access_peer(&n, 0, 1));
	CHECK(n == 1);
}

// Exported memory stays as long as its descriptor, and is then freed.
static void exported(void) {
	CUmemGenericAllocationHandle h, again;
	size_t total, before, after;
	int fd;
	push(0);
	OK(cu_mem_info(&before, &total));
	OK(cu_mem_create(&h, GRANULE, &shared, 0));
	OK(cu_mem_export(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cu_mem_release(h));
	OK(cu_mem_info(&after, &total));
	CHECK(after == before - GRANULE);
	OK(cu_mem_import(&again, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	OK(cu_mem_release(again));
	OK(cu_mem_info(&after, &total));
	CHECK(after == before);
	CHECK(cu_mem_import(&again, (void *)(intptr_t)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_ERROR_UNKNOWN);
	fake_reset();
}

// Kernels run when they are queued, or when the graph that they were captured into is.
static void kernels(void) {
	CUmodule m;
	CUfunction f, empty;
	CUstream s;
	CUgraph g, other;
	CUgraphExec x;
	CUgraphNode node;
	CUgraphExecUpdateResult why;
	CUstreamCaptureStatus status;
	cuuint64_t id;
	size_t offset, size;
	unsigned char got[4];
	struct {
		CUdeviceptr p;
		unsigned long long n;
		unsigned int value;
	} args = {.n = 3, .value = 7};
	size_t n = 20;
	void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER, &args, (void *)CU_LAUNCH_PARAM_BUFFER_SIZE, &n, NULL};
	CUcontext zero = push(0);
	args.p = mapped();
	OK(cu_stream_create(&s, CU_STREAM_NON_BLOCKING));
	CHECK(cu_module_load(&m, "rubbish", 0, NULL, NULL) == CUDA_ERROR_INVALID_IMAGE);
	CHECK(cu_module_load(&m, "// fails 222 too new\n", 0, NULL, NULL) == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
	OK(cu_module_load(&m, code, 0, NULL, NULL));
	CHECK(cu_module_function(&f, m, "fill") == CUDA_ERROR_NOT_FOUND);
	OK(cu_module_function(&f, m, "fill_bytes"));
	OK(cu_module_function(&empty, m, "empty"));
	OK(cu_function_param(f, 2, &offset, &size));
	CHECK(offset == 16 && size == 4);
	CHECK(cu_function_param(f, 3, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
	OK(cu_launch(f, 1, 1, 1, 32, 1, 1, 0, s, NULL, extra));
	OK(cu_copy_out(got, args.p, sizeof got, s));
	CHECK(memcmp(got, "\7\7\7\0", sizeof got) == 0);
	CHECK(cu_launch(f, 1, 1, 1, 1025, 1, 1, 0, s, NULL, extra) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cu_launch(f, 1, 1, 1, 1, 1, 1, 48 * 1024 + 1, s, NULL, extra) == CUDA_ERROR_INVALID_VALUE);
	OK(cu_function_set(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 49153));
	OK(cu_launch(f, 1, 1, 1, 1, 1, 1, 48 * 1024 + 1, s, NULL, extra));

	args.value = 8;
	OK(cu_stream_begin_capture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cu_launch(f, 1, 1, 1, 32, 1, 1, 0, s, NULL, extra));
	OK(cu_stream_capture_info(s, &status, &id));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != 0);
	OK(cu_stream_end_capture(s, &g));
	args.value = 9;
	OK(cu_graph_instantiate(&x, g, 0));
	OK(cu_copy_out(got, args.p, sizeof got, s));
	CHECK(got[0] == 7);
	OK(cu_graph_launch(x, s));
	OK(cu_copy_out(got, args.p, sizeof got, s));
	CHECK(got[0] == 8);

	OK(cu_stream_begin_capture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cu_launch(empty, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
	OK(cu_graph_launch(x, s));
	OK(cu_stream_end_capture(s, &other));
	CHECK(cu_graph_update(x, other, &node, &why) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	CHECK(why == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
	OK(cu_graph_update(x, g, &node, &why));
	OK(cu_graph_destroy(other));
	OK(cu_graph_exec_destroy(x));

	args.p = 1;
	OK(cu_launch(f, 1, 1, 1, 32, 1, 1, 0, s, NULL, extra));
	CHECK(cu_ctx_sync() == CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(cu_graph_destroy(g));
	CHECK(cu_module_unload(m) == CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(cu_ctx_pop(&zero));
	struct fake_count now;
	fake_live(&now);
	CHECK(now.modules == 0 && now.graphs == 0 && now.execs == 0);
	fake_reset();

	push(0);
	OK(cu_stream_create(&s, CU_STREAM_NON_BLOCKING));
	OK(cu_module_load(&m, code, 0, NULL, NULL));
	OK(cu_module_function(&empty, m, "empty"));
	OK(cu_module_unload(m));
	CHECK(cu_launch(empty, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL) == CUDA_ERROR_INVALID_HANDLE);
	OK(cu_ctx_pop(NULL));
	said("does not exist");
	push(0);
	OK(cu_module_load(&m, code, 0, NULL, NULL));
	OK(cu_module_function(&f, m, "fill_bytes"));
	n = 16;
	CHECK(cu_launch(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra) == CUDA_ERROR_INVALID_VALUE);
	OK(cu_ctx_pop(NULL));
	said("16 bytes of arguments for 20 of parameters");
	push(0);
	OK(cu_module_load(&m, code, 0, NULL, NULL));
	OK(cu_ctx_pop(NULL));
	push(1);
	CHECK(cu_module_unload(m) == CUDA_ERROR_INVALID_HANDLE);
	OK(cu_ctx_pop(NULL));
	said("is of another context");
}

// attribute is one that is no int.
static unsigned long long attribute(CUmemoryPool pool, CUmemPool_attribute a) {
	cuuint64_t v;
	OK(cu_pool_get(pool, a, &v));
	return v;
}

// Memory of a pool stays reserved until a wait or a trim, and a pool until its last memory
// is free.
static void pools(void) {
	CUmemoryPool pool, other;
	CUdeviceptr p, q;
	CUmemAccessDesc none = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_NONE};
	CUmemPoolProps props = pool_props;
	struct fake_count now;
	push(0);
	props.reserved[53] = 1;
	CHECK(cu_pool_create(&pool, &props) == CUDA_ERROR_INVALID_VALUE);
	OK(cu_ctx_pop(NULL));
	said("a reserved field is not zero");
	push(0);
	OK(cu_pool_create(&pool, &pool_props));
	OK(cu_pool_destroy(pool));
	CHECK(cu_pool_trim(pool, 0) == CUDA_ERROR_INVALID_VALUE);
	OK(cu_ctx_pop(NULL));
	said("is no pool");
	push(0);
	OK(cu_pool_default(&pool, 0));
	CHECK(cu_pool_set(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &(cuuint64_t){1}) == CUDA_ERROR_INVALID_VALUE);
	OK(cu_ctx_pop(NULL));
	said("cannot be set to 1");

	push(0);
	props = pool_props;
	props.maxSize = 1024;
	OK(cu_pool_create(&pool, &props));
	CHECK(cu_pool_set_access(pool, &none, 1) == CUDA_ERROR_INVALID_VALUE);
	OK(cu_pool_alloc_from(&p, 700, pool, NULL));
	CHECK(cu_pool_alloc_from(&q, 1, pool, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 1024);
	OK(cu_pointer_attribute(&other, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
	CHECK(other == pool);
	OK(cu_pool_free(p, NULL));
	CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 1024);
	OK(cu_ctx_sync());
	CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
	CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 1024);

	OK(cu_pool_set_current(0, pool));
	OK(cu_pool_alloc(&p, 1, NULL));
	CHECK(cu_pool_set_current(1, pool) == CUDA_ERROR_INVALID_VALUE);
	OK(cu_pool_destroy(pool));
	OK(cu_pool_current(&other, 0));
	CHECK(other != pool);
	fake_live(&now);
	CHECK(now.pools == 1); // its memory is in use
	OK(cu_plain_free(p));
	fake_live(&now);
	CHECK(now.pools == 0);
	OK(cu_ctx_pop(NULL));
	fake_reset();
}

// gone reports whether nothing is mapped at p any more.
static bool gone(const void *p) { return msync((void *)((uintptr_t)p & ~(uintptr_t)4095), 1, MS_ASYNC) != 0; }

// lowest_fd is what the next descriptor will be.
static int lowest_fd(void) {
	int fd = dup(0);
	close(fd);
	return fd;
}

// leak leaves one of everything to fake_reset.
static void leak(void) {
	CUmemGenericAllocationHandle h;
	CUdeviceptr p;
	CUstream s;
	CUevent e;
	CUgraph g;
	CUgraphExec x;
	CUmodule m;
	CUfunction f;
	void *host;
	int fd, before = lowest_fd();
	push(0);
	mapped();
	OK(cu_mem_create(&h, GRANULE, &shared, 0));
	OK(cu_mem_export(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	close(fd);
	OK(cu_plain_alloc(&p, 1));
	OK(cu_host_alloc(&host, 1, CU_MEMHOSTALLOC_PORTABLE));
	OK(cu_stream_create(&s, CU_STREAM_NON_BLOCKING));
	OK(cu_event_create(&e, CU_EVENT_DISABLE_TIMING));
	OK(cu_stream_begin_capture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cu_module_load(&m, code, 0, NULL, NULL));
	OK(cu_module_function(&f, m, "empty"));
	OK(cu_launch(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
	OK(cu_stream_end_capture(s, &g));
	OK(cu_graph_instantiate(&x, g, 0));
	OK(cu_stream_begin_capture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cu_graph_launch(x, s));
	OK(fake_fail("cuMemMap", 9, 1));
	CUcontext peer;
	OK(cu_primary_retain(&peer, 1));
	OK(cu_ctx_enable_peer(peer, 0));
	CUmemoryPool pool;
	OK(cu_pool_create(&pool, &pool_props));
	struct fake_count all = {1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, now;
	fake_live(&now);
	CHECK(memcmp(&all, &now, sizeof now) == 0);
	const void *places[2 * 3];
	CHECK(fake.span_count == 3);
	for (size_t i = 0; i < fake.span_count; i++) {
		places[2 * i] = (void *)fake.spans[i].p;
		places[2 * i + 1] = fake.spans[i].bytes;
		CHECK(!gone(places[2 * i]) && !gone(places[2 * i + 1]));
	}
	fake_reset();
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
		CHECK(gone(places[i]));
	CHECK(lowest_fd() == before);
	struct fake_count none = {0};
	fake_live(&now);
	CHECK(memcmp(&none, &now, sizeof now) == 0);
}

int main(void) {
	CUdeviceptr p;
	CHECK(cu_mem_reserve(&p, GRANULE, 0, 0, 0) == CUDA_ERROR_NOT_INITIALIZED);
	said("called before cuInit");
	OK(cu_init(0));
	wrong();
	faults();
	lost();
	peers();
	exported();
	kernels();
	pools();
	leak();
	int n;
	fake_configure(3, 1 << 20);
	OK(cu_device_count(&n));
	CHECK(n == 3);
	return 0;
}
