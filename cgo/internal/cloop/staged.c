#define _GNU_SOURCE
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCK = 2 << 20, HUGE_PAGE = 2 << 20, MOST = 64 };

// A lane copies pieces between a block and the device while it copies between the other block and memory.
struct lane {
	pthread_t thread;
	struct staged *d;
	CUstream stream;
	void *block[2];
	CUevent done[2]; // of the block's last copy
	cloop_took took;
};

// staged is a copy between device and host through pinned blocks.
struct staged {
	struct cloop *l;
	CUdeviceptr at;
	char *host;
	size_t size, next; // next: of the piece that is taken next
	cloop_took (*copy)(struct lane *);
	struct lane lanes[MOST];
};

static cloop_took make(struct cloop *l, struct lane *t) {
	TRY(l, stream_create, &t->stream, CU_STREAM_NON_BLOCKING);
	for (int i = 0; i < 2; i++) {
		TRY(l, host_alloc, &t->block[i], BLOCK, 0);
		TRY(l, event_create, &t->done[i], CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
	}
	return (cloop_took){0};
}

static cloop_took end(struct cloop *l, struct lane *t) {
	for (int i = 0; i < 2; i++) {
		TRY(l, event_destroy, t->done[i]);
		TRY(l, host_free, t->block[i]);
	}
	TRY(l, stream_destroy, t->stream);
	return (cloop_took){0};
}

// piece takes the next piece: n is 0 if there is none.
static size_t piece(struct staged *d, size_t *n) {
	size_t at = __atomic_fetch_add(&d->next, BLOCK, __ATOMIC_RELAXED);
	*n = at >= d->size ? 0 : d->size - at < BLOCK ? d->size - at : BLOCK;
	return at;
}

static cloop_took download(struct lane *t) {
	struct staged *d = t->d;
	size_t at[2] = {0}, n[2] = {0};
	for (int k = 0;; k ^= 1) {
		at[k] = piece(d, &n[k]);
		if (n[k] > 0) {
			TRY(d->l, copy_out, t->block[k], d->at + at[k], n[k], t->stream);
			TRY(d->l, event_record, t->done[k], t->stream);
		}
		int other = k ^ 1;
		if (n[other] > 0) {
			TRY(d->l, event_sync, t->done[other]);
			memcpy(d->host + at[other], t->block[other], n[other]);
		}
		if (n[k] == 0)
			return (cloop_took){0};
	}
}

static cloop_took upload(struct lane *t) {
	struct staged *d = t->d;
	int busy[2] = {0};
	for (int k = 0;; k ^= 1) {
		size_t n, at = piece(d, &n);
		if (busy[k])
			TRY(d->l, event_sync, t->done[k]);
		if (n == 0) {
			if (busy[k ^ 1])
				TRY(d->l, event_sync, t->done[k ^ 1]);
			return (cloop_took){0};
		}
		memcpy(t->block[k], d->host + at, n);
		TRY(d->l, copy_in, d->at + at, t->block[k], n, t->stream);
		TRY(d->l, event_record, t->done[k], t->stream);
		busy[k] = 1;
	}
}

static cloop_took within(struct lane *t) {
	struct cloop *l = t->d->l;
	TRY(l, ctx_push, l->ctx);
	cloop_took took = t->d->copy(t);
	TRY(l, ctx_pop, &l->ctx);
	return took;
}

static void *run(void *arg) {
	struct lane *t = arg;
	t->took = within(t);
	return NULL;
}

static cloop_took staged(struct cloop *l, CUdeviceptr at, size_t size, int threads, cloop_took (*copy)(struct lane *)) {
	if (threads > MOST)
		return (cloop_took){.call = "threads", .r = -1};
	struct staged *d = calloc(1, sizeof *d);
	void *mapping = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (d == NULL || mapping == MAP_FAILED)
		return (cloop_took){.call = "mmap", .r = -1};
	*d = (struct staged){.l = l, .at = at, .size = size, .copy = copy};
	d->host = (char *)(((size_t)mapping + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
	madvise(d->host, size, MADV_HUGEPAGE);
	if (copy == upload)
		memset(d->host, 1, size);
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

cloop_took cloop_download(struct cloop *l, CUdeviceptr src, size_t size, int threads) {
	return staged(l, src, size, threads, download);
}

cloop_took cloop_upload(struct cloop *l, CUdeviceptr dst, size_t size, int threads) {
	return staged(l, dst, size, threads, upload);
}
