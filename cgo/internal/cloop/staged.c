#define _GNU_SOURCE
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCK = 2 << 20, HUGE_PAGE = 2 << 20, MOST = 64 };

// A lane copies pieces of a download, from one block to memory while the other is filled.
struct lane {
	pthread_t thread;
	struct download *d;
	CUstream stream;
	void *block[2];
	CUevent filled[2];
	cloop_took took;
};

struct download {
	struct cloop *l;
	CUdeviceptr src;
	char *dst;
	size_t size, next; // next: of the piece that is taken next
	struct lane lanes[MOST];
};

static cloop_took make(struct cloop *l, struct lane *t) {
	TRY(l, stream_create, &t->stream, CU_STREAM_NON_BLOCKING);
	for (int i = 0; i < 2; i++) {
		TRY(l, host_alloc, &t->block[i], BLOCK, 0);
		TRY(l, event_create, &t->filled[i], CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
	}
	return (cloop_took){0};
}

static cloop_took end(struct cloop *l, struct lane *t) {
	for (int i = 0; i < 2; i++) {
		TRY(l, event_destroy, t->filled[i]);
		TRY(l, host_free, t->block[i]);
	}
	TRY(l, stream_destroy, t->stream);
	return (cloop_took){0};
}

static cloop_took copy(struct lane *t) {
	struct download *d = t->d;
	struct cloop *l = d->l;
	size_t at[2] = {0}, n[2] = {0};
	TRY(l, ctx_push, l->ctx);
	for (int k = 0;; k ^= 1) {
		at[k] = __atomic_fetch_add(&d->next, BLOCK, __ATOMIC_RELAXED);
		n[k] = at[k] >= d->size ? 0 : d->size - at[k] < BLOCK ? d->size - at[k] : BLOCK;
		if (n[k] > 0) {
			TRY(l, copy_out, t->block[k], d->src + at[k], n[k], t->stream);
			TRY(l, event_record, t->filled[k], t->stream);
		}
		int other = k ^ 1;
		if (n[other] > 0) {
			TRY(l, event_sync, t->filled[other]);
			memcpy(d->dst + at[other], t->block[other], n[other]);
		}
		if (n[k] == 0)
			break;
	}
	TRY(l, ctx_pop, &l->ctx);
	return (cloop_took){0};
}

static void *run(void *arg) {
	struct lane *t = arg;
	t->took = copy(t);
	return NULL;
}

cloop_took cloop_download(struct cloop *l, CUdeviceptr src, size_t size, int threads) {
	if (threads > MOST)
		return (cloop_took){.call = "threads", .r = -1};
	struct download *d = calloc(1, sizeof *d);
	void *mapping = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (d == NULL || mapping == MAP_FAILED)
		return (cloop_took){.call = "mmap", .r = -1};
	*d = (struct download){.l = l, .src = src, .size = size};
	d->dst = (char *)(((size_t)mapping + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
	madvise(d->dst, size, MADV_HUGEPAGE);
	TRY(l, ctx_push, l->ctx);
	for (int i = 0; i < threads; i++) {
		d->lanes[i].d = d;
		cloop_took t = make(l, &d->lanes[i]);
		if (t.call != NULL)
			return t;
	}
	long long start = now();
	for (int i = 0; i < threads; i++)
		if (pthread_create(&d->lanes[i].thread, NULL, run, &d->lanes[i]) != 0)
			return (cloop_took){.call = "pthread_create", .r = -1};
	for (int i = 0; i < threads; i++)
		pthread_join(d->lanes[i].thread, NULL);
	cloop_took took = {.ns = now() - start};
	for (int i = 0; i < threads; i++) {
		cloop_took t = d->lanes[i].took;
		if (t.call == NULL)
			t = end(l, &d->lanes[i]);
		if (t.call != NULL)
			return t;
	}
	TRY(l, ctx_pop, &l->ctx);
	munmap(mapping, size + HUGE_PAGE);
	free(d);
	return took;
}
