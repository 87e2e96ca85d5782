// The driver's calls as a C program makes them.
#ifndef CLOOP_H
#define CLOOP_H

#include "abi.h"

struct cloop;

// cloop_took is what a function returns: its value, how long the timed calls took, and
// for a failure the call and its result. Result -1 is the loader's.
typedef struct {
	unsigned long long v;
	long long ns;
	const char *call; // NULL: no failure
	int r;
} cloop_took;

cloop_took cloop_open(struct cloop **out, const char *path, int dev);
cloop_took cloop_close(struct cloop *l);

cloop_took cloop_reserve(struct cloop *l, size_t size, size_t align);
cloop_took cloop_address_free(struct cloop *l, CUdeviceptr p, size_t size);
cloop_took cloop_create(struct cloop *l, size_t size);
cloop_took cloop_create_shared(struct cloop *l, size_t size);
cloop_took cloop_export(struct cloop *l, CUmemGenericAllocationHandle h); // v: the descriptor
cloop_took cloop_release(struct cloop *l, CUmemGenericAllocationHandle h);
cloop_took cloop_range_start(struct cloop *l, CUdeviceptr p); // v: where the driver says that the memory of p begins
cloop_took cloop_unmap(struct cloop *l, CUdeviceptr p, size_t size);
cloop_took cloop_threshold(struct cloop *l, unsigned long long n);

// Timed. With kept, cloop_grow finds the memory in made instead of making it.
cloop_took cloop_map(struct cloop *l, CUdeviceptr p, size_t size, CUmemGenericAllocationHandle h);
cloop_took cloop_grow(struct cloop *l, CUdeviceptr p, const unsigned long long *sizes, const int *counts, int steps,
                      CUmemGenericAllocationHandle *made, int kept);
// cloop_attach maps what n descriptors are of. With shared, it exports that first,
// and closes the descriptors again.
cloop_took cloop_attach(struct cloop *l, CUdeviceptr p, const unsigned long long *sizes, int n, const int *fds,
                        const CUmemGenericAllocationHandle *shared, CUmemGenericAllocationHandle *made);
cloop_took cloop_realloc(struct cloop *l, const unsigned long long *sizes, int steps, int pool);
// cloop_expand allocates old and n bytes, copies there what is at *p and n bytes of the host, and frees the
// old memory. It sets *p to the new one.
cloop_took cloop_expand(struct cloop *l, unsigned long long *p, size_t old, const void *more, size_t n);
// cloop_plain_free frees what cloop_expand has left, untimed.
cloop_took cloop_plain_free(struct cloop *l, CUdeviceptr p);
// cloop_pool_pairs frees what is in a slot of live, if it is not 0, and allocates for it, n
// times, from the default pool. Afterwards cloop_pool_free frees what is in n slots, untimed.
cloop_took cloop_pool_pairs(struct cloop *l, const unsigned long long *sizes, const unsigned int *slots, int n, unsigned long long *live);
cloop_took cloop_pool_free(struct cloop *l, const unsigned long long *live, int n);

// cloop_launch launches n times, on the loop's stream, and waits for none. Each time it
// asks for the context's id, as the binding does to see a reset.
// cloop_launch_one launches once and returns the CUresult: with a crossing for each it is
// the least that Go can do.
int cloop_launch_one(struct cloop *l, CUfunction f, unsigned int grid, unsigned int block, const unsigned char *args, size_t size);
cloop_took cloop_launch(struct cloop *l, CUfunction f, unsigned int grid, unsigned int block, const unsigned char *args, size_t size, int n);
cloop_took cloop_sync(struct cloop *l);

// cloop_download copies device memory into new memory of the host, in huge pages, through pinned
// blocks by so many threads. Making and freeing those, and giving the memory back, is not timed.
cloop_took cloop_download(struct cloop *l, CUdeviceptr src, size_t size, int threads);
// cloop_upload copies memory of the host, which has its pages, to the device in the same way.
cloop_took cloop_upload(struct cloop *l, CUdeviceptr dst, size_t size, int threads);

#endif
