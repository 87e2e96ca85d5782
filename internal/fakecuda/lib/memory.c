// Physical memory: create, release, export, import.
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NAME "fake-cuda-memory" // by which an import knows an export
#define HANDLES 0x7f0000000000ull    // handles are nobody's address and not small
#define HANDLE_STEP 0x40

unsigned char *host_pages(size_t n) {
	void *p = n > ADDRESSES ? MAP_FAILED
	                        : mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

CUresult charge(int device, unsigned long long bytes) {
	struct device *d = &fake.device[device];
	if (bytes > d->total - d->used)
		return CUDA_ERROR_OUT_OF_MEMORY;
	d->used += bytes;
	return CUDA_SUCCESS;
}

void uncharge(int device, unsigned long long bytes) { fake.device[device].used -= bytes; }

static bool charged(const struct chunk *c) { return !c->foreign && c->home.type == CU_MEM_LOCATION_TYPE_DEVICE; }

static void forget_chunk(struct chunk *c) {
	struct chunk **at = &fake.chunks;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	if (charged(c))
		uncharge(c->home.id, c->size);
	free(c);
}

// chunk_unref leaves exported memory lingering: whoever has the descriptor has it.
void chunk_unref(struct chunk *c) {
	if (--c->refs > 0)
		return;
	munmap(c->bytes, c->size);
	if (c->fd >= 0)
		close(c->fd);
	if (!c->exported || c->foreign)
		forget_chunk(c);
}

static bool same_file(const struct chunk *c, const struct stat *st) {
	return c->shareable && c->dev == st->st_dev && c->ino == st->st_ino;
}

// open_here says whether this process has a descriptor of a lingering chunk.
// What other processes have is not seen.
static bool open_here(const struct chunk *c) {
	bool found = false;
	struct stat st;
	DIR *dir = opendir("/proc/self/fd");
	if (dir == NULL)
		return true;
	for (struct dirent *e; !found && (e = readdir(dir)) != NULL;)
		found = fstatat(dirfd(dir), e->d_name, &st, 0) == 0 && same_file(c, &st);
	closedir(dir);
	return found;
}

void sweep(void) {
	for (struct chunk *c = fake.chunks; c != NULL;) {
		struct chunk *next = c->next;
		if (c->refs == 0 && !open_here(c))
			forget_chunk(c);
		c = next;
	}
}

// back gives a chunk its bytes, from its file if it has one.
static CUresult back(struct chunk *c) {
	int flags = c->fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
	c->bytes = mmap(NULL, c->size, PROT_READ | PROT_WRITE, flags, c->fd, 0);
	return c->bytes == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult make_file(struct chunk *c) {
	struct stat st;
	c->fd = memfd_create(FILE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (c->fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (ftruncate(c->fd, (off_t)c->size) != 0 || fstat(c->fd, &st) != 0 ||
	    fcntl(c->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
		close(c->fd);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	c->dev = st.st_dev;
	c->ino = st.st_ino;
	return CUDA_SUCCESS;
}

// new_handle takes a reference. Numbers are used again, as the driver does.
static CUresult new_handle(struct chunk *c, CUmemGenericAllocationHandle *handle) {
	size_t i = 0;
	while (i < fake.handle_room && fake.handles[i] != NULL)
		i++;
	if (i == fake.handle_room) {
		size_t room = fake.handle_room * 2 + 64;
		struct chunk **grown = realloc(fake.handles, room * sizeof *grown);
		if (grown == NULL)
			return CUDA_ERROR_OUT_OF_MEMORY;
		memset(grown + i, 0, (room - i) * sizeof *grown);
		fake.handles = grown;
		fake.handle_room = room;
	}
	fake.handles[i] = c;
	c->refs++;
	*handle = HANDLES + i * HANDLE_STEP;
	return CUDA_SUCCESS;
}

static struct chunk **slot_of(CUmemGenericAllocationHandle handle) {
	unsigned long long i = (handle - HANDLES) / HANDLE_STEP;
	if (handle < HANDLES || handle % HANDLE_STEP != 0 || i >= fake.handle_room || fake.handles[i] == NULL)
		return NULL;
	return &fake.handles[i];
}

struct chunk *chunk_of(CUmemGenericAllocationHandle handle) {
	struct chunk **slot = slot_of(handle);
	return slot ? *slot : NULL;
}

void chunk_ref(struct chunk *c) { c->refs++; }

static void describe(char *text, size_t n, const CUmemAllocationProp *p) {
	if (p == NULL)
		snprintf(text, n, "prop=NULL");
	else
		snprintf(text, n, "type=%d share=%d location=%d:%d compression=%u rdma=%u usage=%u", p->type,
		         p->requestedHandleTypes, p->location.type, p->location.id, p->allocFlags.compressionType,
		         p->allocFlags.gpuDirectRDMACapable, p->allocFlags.usage);
}

// proper checks what cuMemCreate and the question for the granularity share.
static CUresult proper(const CUmemAllocationProp *p) {
	static const unsigned char zero[sizeof p->allocFlags.reserved];
	if (p == NULL || p->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
		violate("the allocation type is not pinned");
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (memcmp(p->allocFlags.reserved, zero, sizeof zero) != 0 || p->allocFlags.usage != 0 ||
	    p->win32HandleMetaData != NULL) {
		violate("a reserved field is not zero");
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (p->allocFlags.compressionType > CU_MEM_ALLOCATION_COMP_GENERIC || p->allocFlags.gpuDirectRDMACapable > 1) {
		violate("unknown allocation flags");
		return CUDA_ERROR_INVALID_VALUE;
	}
	switch ((int)p->location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return known_device(p->location.id);
	case CU_MEM_LOCATION_TYPE_HOST_NUMA: // one node
		return p->location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cu_mem_granularity(size_t *bytes, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option) {
	char text[256];
	describe(text, sizeof text, prop);
	ENTER(mem_granularity, "%s option=%d", text, option);
	TRY(proper(prop));
	if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM) {
		violate("option %d is not known here", option);
		return CUDA_ERROR_INVALID_VALUE;
	}
	*bytes = GRANULE;
	return CUDA_SUCCESS;
}

CUresult cu_mem_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                       unsigned long long flags) {
	char text[256];
	describe(text, sizeof text, prop);
	ENTER(mem_create, "size=%zu %s flags=%llu", size, text, flags);
	if (flags != 0) {
		violate("flags are %llu", flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	TRY(proper(prop));
	int share = (int)prop->requestedHandleTypes;
	if (share & ~(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)) {
		violate("unknown handle type %d", share);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (size == 0 || size % GRANULE != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (share & CU_MEM_HANDLE_TYPE_FABRIC)
		return CUDA_ERROR_NOT_PERMITTED;
	sweep();
	if (size >= ADDRESSES)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		TRY(charge(prop->location.id, size));
	struct chunk *c = malloc(sizeof *c);
	CUresult r = c ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	if (c != NULL)
		*c = (struct chunk){.size = size, .home = prop->location, .shareable = share != 0, .fd = -1};
	if (r == CUDA_SUCCESS && c->shareable)
		r = make_file(c);
	if (r != CUDA_SUCCESS)
		goto uncharge;
	if ((r = back(c)) != CUDA_SUCCESS)
		goto close;
	if ((r = new_handle(c, handle)) != CUDA_SUCCESS)
		goto unmap;
	c->next = fake.chunks;
	fake.chunks = c;
	return CUDA_SUCCESS;
unmap:
	munmap(c->bytes, c->size);
close:
	if (c->fd >= 0)
		close(c->fd);
uncharge:
	free(c);
	if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		uncharge(prop->location.id, size);
	return r;
}

CUresult cu_mem_release(CUmemGenericAllocationHandle handle) {
	ENTER(mem_release, "handle=%#llx", handle);
	struct chunk **slot = slot_of(handle);
	if (slot == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	struct chunk *c = *slot;
	*slot = NULL;
	chunk_unref(c);
	return CUDA_SUCCESS;
}

CUresult cu_mem_export(void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                       unsigned long long flags) {
	ENTER(mem_export, "handle=%#llx type=%d flags=%llu", handle, type, flags);
	if (flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		violate("type is %d, flags are %llu", type, flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct chunk *c = chunk_of(handle);
	if (c == NULL || !c->shareable)
		return CUDA_ERROR_INVALID_VALUE;
	int fd = fcntl(c->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	c->exported = true;
	*(int *)shareable = fd;
	return CUDA_SUCCESS;
}

// exported_file says whether fd is memory that a fake driver exported, this
// process's or another's.
static bool exported_file(int fd, struct stat *st) {
	const char want[] = "/memfd:" FILE_NAME;
	char link[64], name[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, name, sizeof name);
	return n >= (ssize_t)sizeof want - 1 && memcmp(name, want, sizeof want - 1) == 0 && fstat(fd, st) == 0;
}

// adopt makes a chunk of a file that is not one of a live chunk.
static CUresult adopt(struct chunk *c, int fd) {
	c->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (c->fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	CUresult r = back(c);
	if (r != CUDA_SUCCESS)
		close(c->fd);
	return r;
}

CUresult cu_mem_import(CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type) {
	int fd = (int)(intptr_t)shareable;
	ENTER(mem_import, "fd=%d type=%d", fd, type);
	struct stat st;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		violate("type is %d", type);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!exported_file(fd, &st))
		return CUDA_ERROR_UNKNOWN;
	struct chunk *c = fake.chunks;
	while (c != NULL && !same_file(c, &st))
		c = c->next;
	if (c == NULL) {
		if ((c = malloc(sizeof *c)) == NULL)
			return CUDA_ERROR_OUT_OF_MEMORY;
		*c = (struct chunk){
			.next = fake.chunks,
			.size = (size_t)st.st_size,
			.home = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
			.shareable = true,
			.foreign = true,
			.dev = st.st_dev,
			.ino = st.st_ino,
		};
		fake.chunks = c;
	}
	CUresult r = c->refs == 0 ? adopt(c, fd) : CUDA_SUCCESS;
	if (r != CUDA_SUCCESS) {
		if (c->foreign)
			forget_chunk(c);
		return r;
	}
	c->refs++; // so that a handle that cannot be made leaves as it came
	r = new_handle(c, handle);
	chunk_unref(c);
	return r;
}

void reset_memory(void) {
	for (size_t i = fake.span_count; i-- > 0;)
		if (fake.spans[i].kind == MAPPED) {
			chunk_unref(fake.spans[i].chunk);
			span_remove(i, 1);
		}
	for (size_t i = 0; i < fake.handle_room; i++)
		if (fake.handles[i] != NULL)
			chunk_unref(fake.handles[i]);
	free(fake.handles);
	fake.handles = NULL;
	fake.handle_room = 0;
	while (fake.chunks != NULL)
		forget_chunk(fake.chunks);
	for (struct reservation *r = fake.reservations; r != NULL;) {
		struct reservation *next = r->next;
		munmap((void *)r->p, r->size);
		free(r);
		r = next;
	}
	fake.reservations = NULL;
	free(fake.spans);
	fake.spans = NULL;
	fake.span_count = fake.span_room = 0;
}
