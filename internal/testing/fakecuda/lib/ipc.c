// Handles of memory, events and pools between processes. The others are records made by
// fake_foreign.
#include "fake.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// What names something is 64 bytes: what it is of, whose it is, and a number.
enum { MEMORY = 0x1c, EVENT = 0x2c, POINTER = 0x3c };
#define OWN 0ull

struct name {
	unsigned char is[48];
	unsigned long long serial; // of the process; OWN
	unsigned long long number; // its address or handle here
};

static void write_name(void *out, int is, unsigned long long serial, unsigned long long number) {
	struct name n = {.serial = serial, .number = number};
	_Static_assert(sizeof n == 64, "names have 64 bytes");
	memset(n.is, is, sizeof n.is);
	memcpy(out, &n, sizeof n);
}

// read_name is INVALID_VALUE for what is no such name. *out is NULL for one of this process.
static CUresult read_name(const void *in, int is, struct foreign **out) {
	struct name n;
	memcpy(&n, in, sizeof n);
	for (size_t i = 0; i < sizeof n.is; i++)
		if (n.is[i] != is)
			return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	if (n.serial == OWN)
		return CUDA_SUCCESS;
	for (struct foreign *f = fake.foreign; f != NULL; f = f->next)
		if (f->serial == n.serial)
			*out = f;
	return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cu_ipc_get_mem(CUipcMemHandle *handle, CUdeviceptr p) {
	ENTER(ipc_get_mem, "p=%#llx", p);
	struct device *dev;
	TRY(context(&dev));
	struct span *s = span_at(p);
	if (s == NULL || s->kind != PLAIN || s->pool != NULL || s->foreign != NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (s->p != p)
		violate("%#llx is not the beginning of what was allocated", p);
	write_name(handle, MEMORY, OWN, p);
	return CUDA_SUCCESS;
}

// opened_at finds memory that is open.
static struct span *opened_at(const struct foreign *f, const struct pool *pool) {
	for (size_t i = 0; i < fake.span_count; i++)
		if (fake.spans[i].foreign == f && fake.spans[i].pool == pool)
			return &fake.spans[i];
	return NULL;
}

CUresult cu_ipc_open_mem(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags) {
	ENTER(ipc_open_mem, "kind=%#x flags=%u", (unsigned char)handle.reserved[0], flags);
	struct device *dev;
	struct foreign *f;
	TRY(context(&dev));
	if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
		violate("flags are %u", flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	TRY(unsafe_in_capture());
	TRY(read_name(&handle, MEMORY, &f));
	if (f == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (f->ended)
		return CUDA_ERROR_INVALID_HANDLE;
	if (f->device != dev - fake.device && dev->link[f->device] == FAKE_NO_PATH)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	struct span *s = opened_at(f, NULL);
	if (s != NULL)
		*p = s->p;
	else
		TRY(foreign_plain(f, f->bytes, NULL, p));
	f->opens++;
	return CUDA_SUCCESS;
}

CUresult cu_ipc_close_mem(CUdeviceptr p) {
	ENTER(ipc_close_mem, "p=%#llx", p);
	struct device *dev;
	CUresult lost = context(&dev);
	if (lost != CUDA_SUCCESS && lost != CUDA_ERROR_ILLEGAL_ADDRESS)
		return lost;
	TRY(unsafe_in_capture());
	struct span *s = span_at(p);
	if (s == NULL || s->p != p || s->foreign == NULL || s->pool != NULL) {
		violate("%#llx was not opened", p);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (--s->foreign->opens == 0)
		close_plain(s);
	return lost;
}

CUresult cu_ipc_get_event(CUipcEventHandle *handle, CUevent event) {
	ENTER(ipc_get_event, "event=%p", (void *)event);
	struct device *dev;
	TRY(context(&dev));
	TRY(event_leaves(event));
	write_name(handle, EVENT, OWN, (uintptr_t)event);
	return CUDA_SUCCESS;
}

CUresult cu_ipc_open_event(CUevent *event, CUipcEventHandle handle) {
	ENTER(ipc_open_event, "kind=%#x", (unsigned char)handle.reserved[0]);
	struct device *dev;
	struct foreign *f;
	TRY(context(&dev));
	TRY(unsafe_in_capture());
	TRY(read_name(&handle, EVENT, &f));
	if (f == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	return new_event(dev, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS, true, event);
}

CUresult cu_pool_export(void *shareable, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags) {
	ENTER(pool_export, "pool=%p type=%d flags=%llu", (void *)pool, type, flags);
	struct device *dev;
	struct pool *p;
	TRY(context(&dev));
	TRY(pool_of(pool, &p));
	TRY(unsafe_in_capture());
	if (flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || p->from != NULL)
		violate("type is %d, flags are %llu, or the pool was imported", type, flags);
	if (!(p->share & (int)type) || p->from != NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (p->fd < 0)
		p->fd = new_terminal(&p->terminal);
	int fd = fcntl(p->fd, F_DUPFD, 0); // as the driver's, open across exec
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*(int *)shareable = fd;
	return CUDA_SUCCESS;
}

CUresult cu_pool_import(CUmemoryPool *pool, void *shareable, CUmemAllocationHandleType type, unsigned long long flags) {
	int fd = (int)(intptr_t)shareable;
	ENTER(pool_import, "fd=%d type=%d flags=%llu", fd, type, flags);
	struct device *dev;
	TRY(context(&dev));
	if (flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		violate("type is %d, flags are %llu", type, flags);
	TRY(unsafe_in_capture());
	int terminal = terminal_of(fd);
	for (struct foreign *f = fake.foreign; f != NULL && terminal >= 0; f = f->next)
		if (f->terminal == terminal)
			return new_import(f, pool);
	return CUDA_ERROR_UNKNOWN;
}

CUresult cu_pool_export_pointer(CUmemPoolPtrExportData *token, CUdeviceptr p) {
	ENTER(pool_export_pointer, "p=%#llx", p);
	struct device *dev;
	TRY(context(&dev));
	struct span *s = span_at(p);
	if (s == NULL || s->p != p || s->pool == NULL || s->pool->fd < 0) // the pool must have been exported
		return CUDA_ERROR_INVALID_VALUE;
	write_name(token, POINTER, OWN, p);
	return CUDA_SUCCESS;
}

CUresult cu_pool_import_pointer(CUdeviceptr *p, CUmemoryPool pool, CUmemPoolPtrExportData *token) {
	ENTER(pool_import_pointer, "pool=%p kind=%#x", (void *)pool, token->reserved[0]);
	struct device *dev;
	struct foreign *f;
	struct pool *to;
	TRY(context(&dev));
	TRY(pool_of(pool, &to));
	TRY(unsafe_in_capture());
	if (to->from == NULL)
		violate("the pool was not imported");
	TRY(read_name(token, POINTER, &f));
	if (f == NULL || f != to->from)
		return CUDA_ERROR_INVALID_VALUE;
	struct span *s = opened_at(f, to);
	if (s != NULL) {
		*p = s->p;
		return CUDA_SUCCESS;
	}
	TRY(pool_take(to, f->size));
	CUresult r = foreign_plain(f, f->pool_bytes, to, p);
	if (r != CUDA_SUCCESS)
		pool_give(to, f->size);
	return r;
}

void reset_foreign(void) {
	while (fake.foreign != NULL) {
		struct foreign *f = fake.foreign;
		fake.foreign = f->next;
		munmap(f->bytes, f->size);
		munmap(f->pool_bytes, f->size);
		free(f);
	}
}

int new_foreign(int device, size_t n, void *memory, void *event, void *token) {
	struct foreign *f = calloc(1, sizeof *f);
	if (f == NULL)
		return -1;
	*f = (struct foreign){.next = fake.foreign, .serial = ++fake.serial, .device = device, .size = n, .bytes = host_pages(n), .pool_bytes = host_pages(n)};
	fake.foreign = f;
	write_name(memory, MEMORY, f->serial, 0);
	write_name(event, EVENT, f->serial, 0);
	write_name(token, POINTER, f->serial, 0);
	return new_terminal(&f->terminal);
}
