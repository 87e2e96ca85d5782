// What the parts of the fake driver share.
#ifndef FAKE_H
#define FAKE_H

#define _GNU_SOURCE

#include "abi.h"
#include "control.h"
#include "symbols.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What a test sets otherwise in its copy of the library, before it loads that.
#pragma GCC visibility push(protected)
extern volatile int fake_init;    // what cuInit returns
extern volatile int fake_version; // of the driver: what is newer must not be asked of it
extern volatile int fake_fabric;  // whether there are fabric handles
extern volatile int fake_node;    // the only NUMA node with memory
extern volatile int fake_numa_id; // the devices' own node; less than -1: the driver does not know of such
#pragma GCC visibility pop

#define DEVICES 2
#define BYTES (1ull << 30) // of each device
#define GRANULE (2ull << 20)
#define ADDRESSES (1ull << 47) // no reservation is as large as this
#define MAX_DEVICES 16

// The oldest revisions of symbols that were revised later. dlsym finds these names
// too, and a binding that calls one has the wrong version.
#define OLD_SYMBOLS(OLD) \
	OLD(old_device_memory, "cuDeviceTotalMem") \
	OLD(old_primary_release, "cuDevicePrimaryCtxRelease") \
	OLD(old_ctx_push, "cuCtxPushCurrent") \
	OLD(old_ctx_pop, "cuCtxPopCurrent") \
	OLD(old_mem_info, "cuMemGetInfo") \
	OLD(old_copy_in, "cuMemcpyHtoDAsync") \
	OLD(old_copy_out, "cuMemcpyDtoHAsync") \
	OLD(old_copy_2d, "cuMemcpy2DAsync") \
	OLD(old_stream_destroy, "cuStreamDestroy") \
	OLD(old_begin_capture, "cuStreamBeginCapture") \
	OLD(old_event_destroy, "cuEventDestroy") \
	OLD(old_plain_alloc, "cuMemAlloc") \
	OLD(old_plain_free, "cuMemFree") \
	OLD(old_ipc_open_mem, "cuIpcOpenMemHandle") \
	OLD(old_wait_value32, "cuStreamWaitValue32") \
	OLD(old_wait_value64, "cuStreamWaitValue64") \
	OLD(old_write_value32, "cuStreamWriteValue32") \
	OLD(old_write_value64, "cuStreamWriteValue64")

// What only other libraries call.
#define OTHER_SYMBOLS(OTHER) \
	OTHER(primary_reset, "cuDevicePrimaryCtxReset_v2", (CUdevice dev))

#define INDEX(field, symbol, params) SYM_##field,
#define INDEX_OLD(field, symbol) SYM_##field,
enum {
	CUVMM_SYMBOLS(INDEX, INDEX)
	OTHER_SYMBOLS(INDEX)
	OLD_SYMBOLS(INDEX_OLD)
	SYM_COUNT
};
#undef INDEX
#undef INDEX_OLD

// The driver's functions. The compiler holds each to its entry in symbols.h,
// and the label gives it the exported name that stands there.
#pragma GCC visibility push(default)
#define DECLARE(field, symbol, params) CUresult cu_##field params __asm__(symbol);
CUVMM_SYMBOLS(DECLARE, DECLARE)
OTHER_SYMBOLS(DECLARE)
#undef DECLARE
#define DECLARE_OLD(field, symbol) CUresult cu_##field(void) __asm__(symbol);
OLD_SYMBOLS(DECLARE_OLD)
#undef DECLARE_OLD
#pragma GCC visibility pop

struct device {
	unsigned long long total, used;
	unsigned int retained; // of the primary context, which the device stands for
	bool alive;            // not so where it is retained and was reset since
	unsigned long long id; // of the context
	unsigned int epoch;    // how many primary contexts have ended
	int pushed;
	struct pool *default_pool; // NULL: no one has asked for it yet
	struct pool *current_pool; // NULL: the default one
	unsigned char link[MAX_DEVICES]; // to each other device: FAKE_NVLINK and so on
	unsigned int peers;              // the devices whose plain memory its context reaches, a bit each
	int outlived;                    // peers that were enabled when the context was destroyed
};

// chunk is one piece of physical memory. It lives while handles or mappings
// refer to it, and as exported memory while a file descriptor does.
struct chunk {
	struct chunk *next;
	size_t size;
	CUmemLocation home;
	int share;                 // the handle types to export it by
	unsigned char rdma, compression; // what it was created with
	unsigned long long serial; // what a fabric handle names
	int fd, terminal; // of exported memory: our descriptor, and the terminal that it is of
	int refs;
	unsigned char *bytes;
};

struct handle {
	struct chunk *chunk; // NULL: the number is free
	bool imported;
};

// dmabuf is an exported span. It keeps the memory while this process has a descriptor
// of that file; descriptors of other processes are not seen.
struct dmabuf {
	struct dmabuf *next;
	unsigned long long dev, inode;
	size_t count;
	struct chunk *chunks[];
};

struct reservation {
	struct reservation *next;
	CUdeviceptr p;
	size_t size;
};

// pool is a pool of stream-ordered memory. Its memory is free when the call that frees it
// returns, and stays reserved until a wait or a trim.
struct pool {
	struct pool *next;
	int device;
	bool destroyed; // it goes with its last memory
	int share;        // the handle types to export it by
	int fd, terminal; // once exported: our descriptor, and the terminal that it is of
	struct foreign *from; // of an imported one; NULL: it was made here
	unsigned long long max, threshold;
	unsigned long long reserved, used, reserved_high, used_high;
	int reuse[3];
	unsigned char access[MAX_DEVICES];
};

// foreign is another process, with a piece of memory, an event, and a pool with a piece
// of the same size.
struct foreign {
	struct foreign *next;
	unsigned long long serial;
	int device;
	size_t size;
	unsigned char *bytes, *pool_bytes;
	int terminal; // that the pool's descriptor is of
	bool ended;
	int opens; // of the memory
};

enum kind { MAPPED, PLAIN, PINNED };

// span is memory at an address. The CPU faults on an address of device memory, as it
// does with a GPU.
struct span {
	enum kind kind;
	CUdeviceptr p;
	size_t size;
	unsigned char *bytes;
	int device; // where the memory is; for PINNED, where it was allocated
	struct pool *pool; // of PLAIN memory; NULL: none
	struct foreign *foreign; // the process whose PLAIN memory it is; NULL: this one

	// MAPPED only.
	struct chunk *chunk;
	struct reservation *within;
	// MAPPED only too, but for memory of a pool access is the pool's.
	unsigned char access[MAX_DEVICES];
	unsigned char host_access;
};

// node is a captured launch, or a captured fill. Copies do not come into the graph.
struct node {
	struct node *next;
	CUfunction f; // NULL: a fill, whose arguments are a struct fill
	size_t n;
	unsigned char args[];
};

// fill is n times a pattern of width bytes.
struct fill {
	CUdeviceptr dst;
	size_t width, n;
	unsigned char pattern[4];
};

struct stream {
	struct stream *next;
	struct device *device;
	unsigned int epoch;
	bool gone;       // its context was reset
	bool per_thread; // the default stream of thread
	CUstreamCaptureStatus capture;
	unsigned long long capture_id;
	struct node *captured;
	CUstreamCaptureMode mode;
	pthread_t thread; // that began the capture, or whose default stream it is
};

// state is all that fake_reset clears.
struct state {
	int devices;
	bool lost; // one device is lost, and so all of this process are
	struct device device[MAX_DEVICES];
	struct chunk *chunks;
	unsigned long long serial; // of the last chunk
	unsigned long long ids;    // of contexts and captures, so far
	struct dmabuf *dmabufs;
	struct handle *handles; // by number
	size_t handle_room;
	struct reservation *reservations;
	struct span *spans; // by address
	size_t span_count, span_room;
	struct stream *streams;
	struct pool *pools;
	struct foreign *foreign;
	struct event *events;
	struct CUgraph_st *graphs;
	struct CUgraphExec_st *execs;
	struct CUmod_st *modules;
};

extern struct state fake;

// A call begins with ENTER: it holds the lock until the function returns, records the
// call, and returns the error of a planned failure.
struct call {
	bool refused;
	CUresult code;
};

struct call enter(int symbol, const char *format, ...) __attribute__((format(printf, 2, 3)));
void leave(struct call *);

#define ENTER(field, ...) \
	__attribute__((cleanup(leave))) struct call call = enter(SYM_##field, __VA_ARGS__); \
	if (call.refused) \
	return call.code

// Calls that must not run beside each other: one that changes whether a stream is being captured,
// and one that looks at where the work of that stream, or of its context, ends. On a card the
// process dies. MEETS comes before ENTER, so that a call is under way while fake_pause holds it
// back or another one has the lock.
enum meeting_kind { CHANGES, LOOKS, LOOKS_AT_CONTEXT };

struct meeting {
	struct meeting *next;
	enum meeting_kind kind;
	struct device *device; // whose context is current, or NULL
	CUstream stream;
};

void meet(struct meeting *m, int symbol, enum meeting_kind kind, CUstream stream);
void part(struct meeting *m);

#define MEETS(field, kind, stream) \
	__attribute__((cleanup(part))) struct meeting meeting; \
	meet(&meeting, SYM_##field, kind, stream)

// TRY makes the function return r unless it is CUDA_SUCCESS.
#define TRY(r) \
	do { \
		CUresult try_ = (r); \
		if (try_ != CUDA_SUCCESS) \
			return try_; \
	} while (0)

// violate records, under the name of the running call, what a correct program would
// not have done.
void violate(const char *format, ...) __attribute__((format(printf, 1, 2)));

// context is the device whose context is current; an error where there is none,
// or where the process is lost.
CUresult context(struct device **out);

// current is that device, or NULL, for a call that does not hold the lock yet.
struct device *current(void);

// fresh_thread clears what this thread has from before the last reset.
void fresh_thread(unsigned int generation);

// known_device is INVALID_DEVICE unless dev is one.
CUresult known_device(CUdevice dev);

// Charge counts device memory.
CUresult charge(int device, unsigned long long bytes);
void uncharge(int device, unsigned long long bytes);

// sweep frees exported memory whose last descriptor is closed.
void sweep(void);

// Spans.
struct span *span_at(CUdeviceptr p); // that holds the byte at p
struct span *span_add(struct span s); // NULL: out of memory
void span_remove(size_t first, size_t n);
size_t span_index(CUdeviceptr p); // of the first that does not end at or before p
struct reservation *reservation_of(CUdeviceptr p, size_t size);

// Chunks.
struct handle *handle_of(CUmemGenericAllocationHandle handle); // NULL: no such handle
void chunk_ref(struct chunk *c);
void chunk_unref(struct chunk *c);

// reach is INVALID_VALUE unless the device may do with all of [p, p+n) what
// need says, a CUmemAccess_flags. Plain memory of another device can be copied,
// and filled where access to that device is enabled; mapped memory is granted.
CUresult reach(struct device *dev, CUdeviceptr p, size_t n, int need, bool fill);

// Plain memory of a device, or of a pool of it.
CUresult plain(int device, size_t n, struct pool *pool, CUdeviceptr *p);
CUresult give_back(CUdeviceptr p, enum kind kind);

// Memory of another process, at addresses of its own.
CUresult foreign_plain(struct foreign *f, unsigned char *bytes, struct pool *pool, CUdeviceptr *p);
void close_plain(struct span *s);

// An exported descriptor is of a pseudo-terminal. terminal_of is -1 for any other.
int new_terminal(int *terminal);
int terminal_of(int fd);

// Events that other processes open.
CUresult new_event(struct device *dev, unsigned int flags, bool opened, CUevent *event);
CUresult event_leaves(CUevent event); // INVALID_HANDLE unless its handle may leave the process

CUresult pool_of(CUmemoryPool pool, struct pool **out);

// new_import makes a pool of another process's.
CUresult new_import(struct foreign *f, CUmemoryPool *pool);

// pool_take and pool_give count memory of a pool. After a wait for a device release_pools
// releases what its pools hold beyond their thresholds.
CUresult pool_take(struct pool *p, size_t n);
void pool_give(struct pool *p, size_t n);
void release_pools(struct device *dev);

// Streams. queue reports whether work put on a stream runs; captured work does not.
CUresult queue(struct device *dev, CUstream s, bool *run);

// stream_of finds a stream of the current context. *out is NULL for the legacy default
// stream, which has no record.
CUresult stream_of(struct device *dev, CUstream s, struct stream **out);

// add_node appends a launch to a list. run_node runs one.
CUresult add_node(struct node **list, CUfunction f, const void *args, size_t n);
CUresult run_node(struct device *dev, const struct node *node);
// run_fill fills memory that is there.
void run_fill(const struct fill *f);
void free_nodes(struct node **list);

// unsafe_in_capture is for a call that might wait. Where captures forbid it, it ends
// them and returns an error.
CUresult unsafe_in_capture(void);

// restore_mode sets the thread's first capture mode again, and reports whether it had
// another.
bool restore_mode(void);

// host_pages is zeroed memory, or NULL. no_access is addresses without memory.
unsigned char *host_pages(size_t n);
CUdeviceptr no_access(size_t n);

// peers_gone and the others are for a device whose context is destroyed; all but the
// first for a reset.
void peers_gone(int dev, bool reset);
void streams_gone(struct device *dev);
void graphs_gone(struct device *dev);
void modules_gone(struct device *dev);
void plain_gone(int dev);
void pools_gone(int dev);

// count_peers counts bits of device.peers, over all devices.
void count_peers(struct fake_count *out);

// sweep_dmabufs frees what no descriptor keeps any more.
void sweep_dmabufs(bool all);

void reset_memory(void);
void reset_plain(void);
void reset_streams(void);
void reset_pools(void);
void reset_foreign(void);

// new_foreign is fake_foreign.
int new_foreign(int device, size_t n, void *memory, void *event, void *token);
void reset_graphs(void);
void reset_modules(void);
void count_streams(struct fake_count *out);
void count_graphs(struct fake_count *out);
void count_pools(struct fake_count *out);
void count_modules(struct fake_count *out);

#endif
