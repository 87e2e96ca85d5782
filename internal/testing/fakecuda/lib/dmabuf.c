// Address spans as dma-buf. The file does not hold the memory: nothing here reads it.
#include "fake.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096

// open_here reports whether this process has a descriptor of the file.
static bool open_here(const struct dmabuf *b) {
	bool found = false;
	struct stat st;
	DIR *dir = opendir("/proc/self/fd");
	if (dir == NULL)
		return true;
	for (struct dirent *e; !found && (e = readdir(dir)) != NULL;)
		found = e->d_name[0] != '.' && fstat(atoi(e->d_name), &st) == 0 && st.st_dev == b->dev && st.st_ino == b->inode;
	closedir(dir);
	return found;
}

void sweep_dmabufs(bool all) {
	for (struct dmabuf **at = &fake.dmabufs; *at != NULL;) {
		struct dmabuf *b = *at;
		if (!all && open_here(b)) {
			at = &b->next;
			continue;
		}
		*at = b->next;
		for (size_t i = 0; i < b->count; i++)
			chunk_unref(b->chunks[i]);
		free(b);
	}
}

// spans_in counts the spans that [p, p+size) touches, 0 if it is not all device
// memory.
static size_t spans_in(CUdeviceptr p, size_t size) {
	size_t n = 0;
	for (CUdeviceptr end = p + size; p < end; n++) {
		struct span *s = span_at(p);
		if (s == NULL || s->kind == PINNED || (s->kind == MAPPED && s->chunk->home.type != CU_MEM_LOCATION_TYPE_DEVICE))
			return 0;
		p = s->p + s->size;
	}
	return n;
}

CUresult cu_mem_range_handle(void *handle, CUdeviceptr p, size_t size, CUmemRangeHandleType type, unsigned long long flags) {
	ENTER(mem_range_handle, "p=%#llx size=%zu type=%d flags=%llu", p, size, type, flags);
	bool known = flags == 0 || (flags == CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE && fake_version >= 12080);
	if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || !known) {
		violate("type is %d, flags are %llu", type, flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (size == 0 || size >= ADDRESSES || (p | size) % PAGE != 0)
		return CUDA_ERROR_INVALID_VALUE;
	struct device *dev;
	TRY(context(&dev));
	size_t n = spans_in(p, size);
	if (n == 0)
		return CUDA_ERROR_INVALID_VALUE;
	struct dmabuf *b = calloc(1, sizeof *b + n * sizeof b->chunks[0]);
	if (b == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct stat st;
	int fd = memfd_create("dmabuf", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)size) != 0 || fstat(fd, &st) != 0) {
		if (fd >= 0)
			close(fd);
		free(b);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	b->dev = st.st_dev;
	b->inode = st.st_ino;
	for (CUdeviceptr end = p + size; p < end;) {
		struct span *s = span_at(p);
		if (s->kind == MAPPED) {
			chunk_ref(s->chunk);
			b->chunks[b->count++] = s->chunk;
		}
		p = s->p + s->size;
	}
	b->next = fake.dmabufs;
	fake.dmabufs = b;
	*(int *)handle = fd;
	return CUDA_SUCCESS;
}
