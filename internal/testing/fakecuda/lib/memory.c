// Physical memory: create, release, export, import.
#include "fake.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define HANDLES 0x7f0000000000ull // handles look like no address and no small number
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

static bool charged(const struct chunk *c) { return c->home.type == CU_MEM_LOCATION_TYPE_DEVICE; }

static void forget_chunk(struct chunk *c) {
	struct chunk **at = &fake.chunks;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	munmap(c->bytes, c->size);
	if (charged(c))
		uncharge(c->home.id, c->size);
	free(c);
}

void chunk_ref(struct chunk *c) { c->refs++; }

// chunk_unref keeps exported memory: it lives as long as a descriptor.
void chunk_unref(struct chunk *c) {
	if (--c->refs > 0)
		return;
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	if (c->terminal < 0)
		forget_chunk(c);
}

// terminal_of is the number of the pseudo-terminal that a descriptor leads, -1
// if it is of something else. An exported descriptor is of a character device,
// as NVIDIA's is, and this is the kind that any process can make and tell apart.
int terminal_of(int fd) {
	struct stat st;
	int n;
	if (fstat(fd, &st) != 0 || !S_ISCHR(st.st_mode) || st.st_rdev != makedev(5, 2))
		return -1;
	return ioctl(fd, TIOCGPTN, &n) == 0 ? n : -1;
}

int new_terminal(int *terminal) {
	int fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	*terminal = terminal_of(fd);
	return fd;
}

// open_here reports whether this process has a descriptor of an exported chunk.
// Descriptors of other processes are not seen, and they cannot import them.
static bool open_here(const struct chunk *c) {
	bool found = false;
	DIR *dir = opendir("/proc/self/fd");
	if (dir == NULL)
		return true;
	for (struct dirent *e; !found && (e = readdir(dir)) != NULL;)
		found = e->d_name[0] != '.' && terminal_of(atoi(e->d_name)) == c->terminal;
	closedir(dir);
	return found;
}

void sweep(void) {
	sweep_dmabufs(false);
	for (struct chunk *c = fake.chunks; c != NULL;) {
		struct chunk *next = c->next;
		if (c->refs == 0 && !open_here(c))
			forget_chunk(c);
		c = next;
	}
}

// new_handle takes a reference. Numbers are reused, as by the driver.
static CUresult new_handle(struct chunk *c, bool imported, CUmemGenericAllocationHandle *handle) {
	size_t i = 0;
	while (i < fake.handle_room && fake.handles[i].chunk != NULL)
		i++;
	if (i == fake.handle_room) {
		size_t capacity = fake.handle_room * 2 + 64;
		struct handle *grown = realloc(fake.handles, capacity * sizeof *grown);
		if (grown == NULL)
			return CUDA_ERROR_OUT_OF_MEMORY;
		memset(grown + i, 0, (capacity - i) * sizeof *grown);
		fake.handles = grown;
		fake.handle_room = capacity;
	}
	fake.handles[i] = (struct handle){c, imported};
	chunk_ref(c);
	*handle = HANDLES + i * HANDLE_STEP;
	return CUDA_SUCCESS;
}

struct handle *handle_of(CUmemGenericAllocationHandle handle) {
	unsigned long long i = (handle - HANDLES) / HANDLE_STEP;
	if (handle < HANDLES || handle % HANDLE_STEP != 0 || i >= fake.handle_room || fake.handles[i].chunk == NULL)
		return NULL;
	return &fake.handles[i];
}

static void describe(char *text, size_t n, const CUmemAllocationProp *p) {
	if (p == NULL)
		snprintf(text, n, "prop=NULL");
	else
		snprintf(text, n, "type=%d share=%d location=%d:%d compression=%u rdma=%u usage=%u", p->type,
		         p->requestedHandleTypes, p->location.type, p->location.id, p->allocFlags.compressionType,
		         p->allocFlags.gpuDirectRDMACapable, p->allocFlags.usage);
}

// proper makes the checks that cuMemCreate and cuMemGetAllocationGranularity share.
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
		return p->location.id == fake_node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cu_mem_granularity(size_t *bytes, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option) {
	char text[256];
	describe(text, sizeof text, prop);
	ENTER(mem_granularity, "%s option=%d", text, option);
	TRY(proper(prop));
	switch ((int)option) {
	case CU_MEM_ALLOC_GRANULARITY_MINIMUM:
		*bytes = GRANULE;
		return CUDA_SUCCESS;
	case CU_MEM_ALLOC_GRANULARITY_RECOMMENDED: // another number, so that a mix-up shows
		*bytes = 4 * GRANULE;
		return CUDA_SUCCESS;
	}
	violate("option %d is not known here", option);
	return CUDA_ERROR_INVALID_VALUE;
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
	if ((share & CU_MEM_HANDLE_TYPE_FABRIC) && !fake_fabric)
		return CUDA_ERROR_NOT_PERMITTED;
	if (size >= ADDRESSES)
		return CUDA_ERROR_OUT_OF_MEMORY;
	sweep();
	struct chunk *c = malloc(sizeof *c);
	if (c == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*c = (struct chunk){
		.next = fake.chunks,
		.size = size,
		.home = prop->location,
		.share = share,
		.rdma = prop->allocFlags.gpuDirectRDMACapable,
		.compression = prop->allocFlags.compressionType,
		.serial = ++fake.serial,
		.fd = -1,
		.terminal = -1,
	};
	CUresult r = charged(c) ? charge(c->home.id, size) : CUDA_SUCCESS;
	if (r != CUDA_SUCCESS)
		goto drop;
	r = CUDA_ERROR_OUT_OF_MEMORY;
	if ((c->bytes = host_pages(size)) == NULL)
		goto uncharge;
	if ((r = new_handle(c, false, handle)) != CUDA_SUCCESS)
		goto unmap;
	fake.chunks = c;
	return CUDA_SUCCESS;
unmap:
	munmap(c->bytes, size);
uncharge:
	if (charged(c))
		uncharge(c->home.id, size);
drop:
	free(c);
	return r;
}

CUresult cu_mem_release(CUmemGenericAllocationHandle handle) {
	ENTER(mem_release, "handle=%#llx", handle);
	struct handle *h = handle_of(handle);
	if (h == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	chunk_unref(h->chunk);
	h->chunk = NULL;
	return CUDA_SUCCESS;
}

// fabric_name is what names a chunk in the fabric, of this process alone.
static void fabric_name(CUmemFabricHandle *name, const struct chunk *c) {
	memset(name, 0xfa, sizeof *name);
	memcpy(name->data, &c->serial, sizeof c->serial);
}

// import_fabric finds the chunk of a name.
static CUresult import_fabric(CUmemGenericAllocationHandle *handle, const CUmemFabricHandle *name) {
	if (!fake_fabric)
		return CUDA_ERROR_NOT_SUPPORTED;
	for (struct chunk *c = fake.chunks; c != NULL; c = c->next) {
		CUmemFabricHandle own;
		fabric_name(&own, c);
		if (c->refs > 0 && memcmp(&own, name, sizeof own) == 0)
			return new_handle(c, true, handle);
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cu_mem_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
	ENTER(mem_properties, "handle=%#llx", handle);
	struct handle *h = handle_of(handle);
	if (h == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*prop = (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = (CUmemAllocationHandleType)(h->imported ? 0 : h->chunk->share),
		.location = h->chunk->home,
	};
	if (!h->imported) {
		prop->allocFlags.gpuDirectRDMACapable = h->chunk->rdma;
		prop->allocFlags.compressionType = h->chunk->compression;
	}
	return CUDA_SUCCESS;
}

CUresult cu_mem_export(void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                       unsigned long long flags) {
	ENTER(mem_export, "handle=%#llx type=%d flags=%llu", handle, type, flags);
	if (flags != 0 || (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && type != CU_MEM_HANDLE_TYPE_FABRIC)) {
		violate("type is %d, flags are %llu", type, flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct handle *h = handle_of(handle);
	if (h == NULL || !(h->chunk->share & (int)type) || h->imported)
		return CUDA_ERROR_INVALID_VALUE;
	struct chunk *c = h->chunk;
	if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
		fabric_name(shareable, c);
		return CUDA_SUCCESS;
	}
	sweep(); // or a closed terminal of the same number may still be listed
	if (c->fd < 0)
		c->fd = new_terminal(&c->terminal);
	int fd = fcntl(c->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*(int *)shareable = fd;
	return CUDA_SUCCESS;
}

CUresult cu_mem_import(CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type) {
	bool fabric = type == CU_MEM_HANDLE_TYPE_FABRIC;
	int fd = fabric ? -1 : (int)(intptr_t)shareable;
	ENTER(mem_import, "fd=%d type=%d", fd, type);
	if (fabric)
		return import_fabric(handle, shareable);
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		violate("type is %d", type);
		return CUDA_ERROR_INVALID_VALUE;
	}
	sweep();
	int terminal = terminal_of(fd);
	struct chunk *c = fake.chunks;
	while (c != NULL && c->terminal != terminal)
		c = c->next;
	if (terminal < 0 || c == NULL)
		return CUDA_ERROR_UNKNOWN;
	if (c->fd < 0 && (c->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	chunk_ref(c); // so that nothing changes if no handle can be made
	CUresult r = new_handle(c, true, handle);
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
		if (fake.handles[i].chunk != NULL)
			chunk_unref(fake.handles[i].chunk);
	free(fake.handles);
	fake.handles = NULL;
	fake.handle_room = 0;
	sweep_dmabufs(true);
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
