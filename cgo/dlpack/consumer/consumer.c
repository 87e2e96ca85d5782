#include "consumer.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

struct reading {
	const DLTensor *t;
	int64_t sum;
};

static const DLTensor *of(void *p, int versioned) {
	return versioned ? &((DLManagedTensorVersioned *)p)->dl_tensor : &((DLManagedTensor *)p)->dl_tensor;
}

// add adds up the elements' bytes from a dimension on.
static int64_t add(const DLTensor *t, int dim, const uint8_t *at) {
	int64_t n = 0, size = t->dtype.bits / 8 * t->dtype.lanes;
	if (dim == t->ndim) {
		for (int64_t i = 0; i < size; i++)
			n += at[i];
		return n;
	}
	for (int64_t i = 0; i < t->shape[dim]; i++)
		n += add(t, dim + 1, at + i * t->strides[dim] * size);
	return n;
}

static void *read_all(void *arg) {
	struct reading *r = arg;
	r->sum = add(r->t, 0, (const uint8_t *)r->t->data + r->t->byte_offset);
	return NULL;
}

int64_t sum(void *p, int versioned, int threads) {
	pthread_t thread[64];
	struct reading r[64] = {0};
	for (int i = 0; i < threads; i++) {
		r[i] = (struct reading){of(p, versioned), 0};
		if (pthread_create(&thread[i], NULL, read_all, &r[i]) != 0)
			return -1;
	}
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	for (int i = 1; i < threads; i++)
		if (r[i].sum != r[0].sum)
			return -1;
	return r[0].sum;
}

struct deleting {
	void **p;
	int versioned, n, first, step, times;
};

static void *run_deleters(void *arg) {
	struct deleting *d = arg;
	for (int i = d->first; i < d->n; i += d->step)
		for (int j = 0; j < d->times; j++)
			if (d->versioned) {
				DLManagedTensorVersioned *v = d->p[i];
				v->deleter(v);
			} else {
				DLManagedTensor *m = d->p[i];
				m->deleter(m);
			}
	return NULL;
}

int delete_all(void **p, int versioned, int n, int threads, int times) {
	pthread_t thread[64];
	struct deleting d[64];
	for (int i = 0; i < threads; i++) {
		d[i] = (struct deleting){p, versioned, n, i, threads, times};
		if (pthread_create(&thread[i], NULL, run_deleters, &d[i]) != 0)
			return -1;
	}
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	return 0;
}

static void *run_cancelled(void *arg) {
	pthread_cancel(pthread_self()); // at the next call that is a cancellation point
	run_deleters(arg);
	pthread_testcancel();
	return NULL;
}

int delete_cancelled(void *p, int versioned) {
	pthread_t thread;
	struct deleting d = {&p, versioned, 1, 0, 1, 1};
	void *result = NULL;
	return pthread_create(&thread, NULL, run_cancelled, &d) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED;
}

static void count_managed(DLManagedTensor *self) { ((struct made *)self->manager_ctx)->deletes++; }

static void count_versioned(DLManagedTensorVersioned *self) { ((struct made *)self->manager_ctx)->deletes++; }

struct made *make_tensor(int versioned) {
	struct made *m = NULL;
	// Aligned as DLPack asks for, so that a byte_offset spoils it.
	if (posix_memalign((void **)&m, 256, sizeof *m) != 0)
		return NULL;
	*m = (struct made){0};
	if (versioned) {
		m->of.versioned.version = (DLPackVersion){1, 1};
		m->of.versioned.manager_ctx = m;
		m->of.versioned.deleter = count_versioned;
	} else {
		m->of.managed.manager_ctx = m;
		m->of.managed.deleter = count_managed;
	}
	for (size_t i = 0; i < sizeof m->data; i++)
		m->data[i] = (char)i;
	DLTensor *t = tensor_of(m, versioned);
	*t = (DLTensor){.data = m->data, .device = {1, 0}, .ndim = 2, .dtype = {2, 32, 1}, .shape = m->shape, .strides = m->strides};
	m->shape[0] = 4, m->shape[1] = 3;
	m->strides[0] = 3, m->strides[1] = 1;
	return m;
}

DLTensor *tensor_of(struct made *m, int versioned) {
	return versioned ? &m->of.versioned.dl_tensor : &m->of.managed.dl_tensor;
}

void drop_deleter(struct made *m, int versioned) {
	if (versioned)
		m->of.versioned.deleter = NULL;
	else
		m->of.managed.deleter = NULL;
}

extern void deleterPanics(void *made); // Go's

static void panic_managed(DLManagedTensor *self) { deleterPanics(self->manager_ctx); }

static void panic_versioned(DLManagedTensorVersioned *self) { deleterPanics(self->manager_ctx); }

void set_panicking(struct made *m, int versioned) {
	if (versioned)
		m->of.versioned.deleter = panic_versioned;
	else
		m->of.managed.deleter = panic_managed;
}
