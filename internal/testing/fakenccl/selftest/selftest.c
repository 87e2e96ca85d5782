// Calls the fake NCCL as no binding should, and checks that it notices.
#include "fake.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

// said checks that this violation was found, and resets.
static void said(const char *what) {
	char *text = fake_violations();
	if (strstr(text, what) == NULL) {
		fprintf(stderr, "violations are\n%swhere \"%s\" was to be\n", text, what);
		exit(1);
	}
	free(text);
	fake_reset();
	CHECK(fake_live(0) == 0);
}

static ncclConfig_t config(int blocking) {
	ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
	c.blocking = blocking;
	c.splitShare = 1;
	return c;
}

static void begin(ncclComm_t *c, int size) {
	ncclConfig_t with = config(0);
	ncclUniqueId id;
	CHECK(fk_unique_id(&id) == ncclSuccess);
	for (int i = 0; i < size; i++)
		CHECK(fk_init(&c[i], size, id, i, &with) == (i < size - 1 ? ncclInProgress : ncclSuccess));
}

static void split(const ncclComm_t *c, ncclComm_t *children, int size) {
	ncclConfig_t with = config(1);
	ncclResult_t r;
	for (int i = 0; i < size; i++)
		CHECK(fk_split(c[i], 0, i, &children[i], &with) == (i < size - 1 ? ncclInProgress : ncclSuccess));
	for (int i = 0; i < size; i++)
		CHECK(fk_async_error(c[i], &r) == ncclSuccess && r == ncclSuccess && children[i] != NULL);
}

// other is the second member's part of a call, in a thread of its own.
struct other {
	ncclComm_t comm;
	int type;
	int32_t value;
	ncclResult_t result;
};

static void *call_other(void *arg) {
	struct other *o = arg;
	o->result = fk_all_reduce(&o->value, &o->value, 1, o->type, 0, o->comm, NULL);
	return NULL;
}

static void *finalize_other(void *arg) {
	struct other *o = arg;
	o->result = fk_finalize(o->comm);
	return NULL;
}

int main(void) {
	ncclComm_t c[2], child[2];
	ncclConfig_t with = config(1);
	ncclUniqueId id;
	pthread_t thread;
	int32_t a = 1;

	CHECK(fk_abort(NULL) == ncclInvalidArgument);
	said("ncclCommAbort no such communicator");
	CHECK(fk_group_end() == ncclInvalidUsage);
	said("ncclGroupEnd not in a group");
	CHECK(fk_unique_id(&id) == ncclSuccess && fk_init(&c[0], 1, id, 0, &with) == ncclSuccess);
	said("blocking is 1");
	with.splitShare = 0;
	CHECK(fk_init(&c[0], 1, id, 0, &with) == ncclSuccess);
	said("splitShare is 0");

	begin(c, 1);
	CHECK(fk_all_reduce(&a, &a, 1, 2, 0, c[0], NULL) == ncclSuccess);
	said("a call of the parent");

	begin(c, 2);
	CHECK(fk_finalize(c[0]) == ncclInProgress && fk_finalize(c[0]) == ncclInvalidArgument);
	said("the last call is in progress");

	begin(c, 2);
	split(c, child, 2);
	struct other o = {child[1], 3, 2, ncclSuccess};
	CHECK(pthread_create(&thread, NULL, call_other, &o) == 0);
	CHECK(fk_all_reduce(&a, &a, 1, 2, 0, child[0], NULL) == ncclInvalidUsage);
	CHECK(pthread_join(thread, NULL) == 0 && o.result == ncclInvalidUsage);
	CHECK(fk_destroy(child[0]) == ncclInvalidUsage);
	said("members make different calls");

	begin(c, 1);
	split(c, child, 1);
	CHECK(fk_finalize(child[0]) == ncclSuccess && fk_finalize(child[0]) == ncclInvalidArgument);
	said("rank 0: finalized twice");

	// What waits ends with the parent, and not before.
	begin(c, 2);
	split(c, child, 2);
	o = (struct other){child[1], 2, 2, ncclSuccess};
	CHECK(pthread_create(&thread, NULL, call_other, &o) == 0);
	while (fake_live(3) == 0)
		sched_yield();
	CHECK(fk_abort(c[1]) == ncclSuccess && pthread_join(thread, NULL) == 0 && o.result == ncclInternalError);
	CHECK(fk_abort(child[1]) == ncclSuccess && fk_abort(child[0]) == ncclSuccess && fk_abort(c[0]) == ncclSuccess);
	CHECK(fake_live(0) == 0);

	// A whole life, which leaves nothing.
	begin(c, 2);
	split(c, child, 2);
	o = (struct other){child[1], 2, 2, ncclSuccess};
	CHECK(fk_group_start() == ncclSuccess);
	CHECK(fk_all_reduce(&a, &a, 1, 2, 0, child[0], NULL) == ncclSuccess);
	CHECK(pthread_create(&thread, NULL, call_other, &o) == 0);
	CHECK(a == 1 && fk_group_end() == ncclSuccess && pthread_join(thread, NULL) == 0);
	CHECK(o.result == ncclSuccess && a == 3 && o.value == 3);
	CHECK(pthread_create(&thread, NULL, finalize_other, &o) == 0);
	CHECK(fk_finalize(child[0]) == ncclSuccess && pthread_join(thread, NULL) == 0 && o.result == ncclSuccess);
	for (int i = 0; i < 2; i++)
		CHECK(fk_destroy(child[i]) == ncclSuccess && fk_destroy(c[i]) == ncclSuccess);
	CHECK(fake_live(0) == 0);
	CHECK(fake_fail("ncclNone", 1, 1) == -1 && fake_fail("ncclGetVersion", 0, 1) == -1);
	char *text = fake_violations();
	CHECK(*text == 0);
	free(text);
	fake_reset();
	return 0;
}
