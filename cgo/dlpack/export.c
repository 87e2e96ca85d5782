// Tensors that Go exports. Their structs are slots of a table, which are used again and never freed, so a
// deleter that is called twice finds memory of the table.
#include "dlpack.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum state { FREE, LIVE, DELETED };

struct cuvmm_dl_slot {
	union {
		struct cuvmm_dl_managed managed;
		struct cuvmm_dl_versioned versioned;
	};
	int64_t dims[2 * CUVMM_DL_OUT]; // the shape, and then the strides
	_Atomic int state;
	struct cuvmm_dl_slot *next; // in the list of those that are deleted
};

#define AT(type, field, at) _Static_assert(offsetof(struct type, field) == (at), #type "." #field)
#define SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type)

_Static_assert(sizeof(void *) == 8, "64 bits");
AT(cuvmm_dl_tensor, data, 0);
AT(cuvmm_dl_tensor, device_type, 8);
AT(cuvmm_dl_tensor, device_id, 12);
AT(cuvmm_dl_tensor, ndim, 16);
AT(cuvmm_dl_tensor, code, 20);
AT(cuvmm_dl_tensor, bits, 21);
AT(cuvmm_dl_tensor, lanes, 22);
AT(cuvmm_dl_tensor, shape, 24);
AT(cuvmm_dl_tensor, strides, 32);
AT(cuvmm_dl_tensor, byte_offset, 40);
SIZE(cuvmm_dl_tensor, 48);
AT(cuvmm_dl_managed, manager_ctx, 48);
AT(cuvmm_dl_managed, deleter, 56);
SIZE(cuvmm_dl_managed, 64);
AT(cuvmm_dl_versioned, major, 0);
AT(cuvmm_dl_versioned, minor, 4);
AT(cuvmm_dl_versioned, manager_ctx, 8);
AT(cuvmm_dl_versioned, deleter, 16);
AT(cuvmm_dl_versioned, flags, 24);
AT(cuvmm_dl_versioned, tensor, 32);
SIZE(cuvmm_dl_versioned, 80);
AT(cuvmm_dl_slot, managed, 0);
AT(cuvmm_dl_slot, versioned, 0);

static int event = -1; // set once, before there is a tensor
static _Atomic(struct cuvmm_dl_slot *) deleted;
static _Atomic uint64_t repeated;

int cuvmm_dl_open(void) {
	return event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

int cuvmm_dl_wake(void) {
	// Only a count near 2^64 refuses it, and then the reader is awake.
	return write(event, &(uint64_t){1}, sizeof(uint64_t)) > 0;
}

// release marks a slot. It takes no lock, and so may run in any thread, in a callback of a stream and in a
// garbage collector. The push is lock-free; cuvmm_dl_deleted empties the list, as a whole.
static void release(struct cuvmm_dl_slot *s) {
	int live = LIVE;
	if (!atomic_compare_exchange_strong(&s->state, &live, DELETED)) {
		atomic_fetch_add(&repeated, 1);
		return;
	}
	// The write may end a thread that was cancelled, and then the reader would wake no more.
	int cancel;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	struct cuvmm_dl_slot *head = atomic_load(&deleted);
	do
		s->next = head;
	while (!atomic_compare_exchange_weak(&deleted, &head, s));
	if (head == NULL) // else the one before has woken the reader, which has not come yet
		cuvmm_dl_wake();
	pthread_setcancelstate(cancel, NULL);
}

static void release_managed(struct cuvmm_dl_managed *self) {
	if (self != NULL)
		release((struct cuvmm_dl_slot *)self);
}

static void release_versioned(struct cuvmm_dl_versioned *self) {
	if (self != NULL)
		release((struct cuvmm_dl_slot *)self);
}

struct cuvmm_dl_slot *cuvmm_dl_new_slot(void) { return calloc(1, sizeof(struct cuvmm_dl_slot)); }

void cuvmm_dl_export(struct cuvmm_dl_slot *s, const struct cuvmm_dl_info *info) {
	struct cuvmm_dl_tensor t = {
		.data = (void *)(uintptr_t)info->data,
		.device_type = info->device_type,
		.device_id = info->device_id,
		.ndim = info->ndim,
		.code = info->code,
		.bits = info->bits,
		.lanes = info->lanes,
		.shape = s->dims,
		.strides = s->dims + CUVMM_DL_OUT,
	};
	memcpy(t.shape, info->shape, (size_t)info->ndim * sizeof(int64_t));
	memcpy(t.strides, info->strides, (size_t)info->ndim * sizeof(int64_t));
	if (info->major == 0)
		s->managed = (struct cuvmm_dl_managed){.tensor = t, .manager_ctx = s, .deleter = release_managed};
	else
		s->versioned = (struct cuvmm_dl_versioned){
			.major = info->major,
			.minor = info->minor,
			.manager_ctx = s,
			.deleter = release_versioned,
			.flags = info->flags,
			.tensor = t,
		};
	atomic_store(&s->state, LIVE);
}

int cuvmm_dl_claim(struct cuvmm_dl_slot *s) {
	int live = LIVE;
	return atomic_compare_exchange_strong(&s->state, &live, FREE);
}

struct cuvmm_dl_slot *cuvmm_dl_deleted(void) { return atomic_exchange(&deleted, NULL); }

struct cuvmm_dl_slot *cuvmm_dl_next(struct cuvmm_dl_slot *s) {
	struct cuvmm_dl_slot *next = s->next;
	atomic_store(&s->state, FREE);
	return next;
}

uint64_t cuvmm_dl_repeated(void) { return atomic_load(&repeated); }
