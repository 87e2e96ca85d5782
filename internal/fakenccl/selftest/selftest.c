// Calls the fake NCCL as no binding should, and checks that it notices.
#include "fake.h"

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

static void begin(ncclComm_t *c, int size, int blocking) {
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id;
	config.blocking = blocking;
	CHECK(fk_unique_id(&id) == ncclSuccess);
	for (int i = 0; i < size; i++)
		CHECK(fk_init(&c[i], size, id, i, &config) == (i < size - 1 ? ncclInProgress : ncclSuccess));
}

int main(void) {
	ncclComm_t c[2];
	ncclResult_t r;
	int32_t a = 1, b = 2;

	CHECK(fk_abort(NULL) == ncclInvalidArgument);
	said("ncclCommAbort no such communicator");
	CHECK(fk_group_end() == ncclInvalidUsage);
	said("ncclGroupEnd not in a group");
	begin(c, 1, 1);
	said("blocking is 1");

	begin(c, 2, 0);
	CHECK(fk_all_reduce(&a, &a, 1, 2, 0, c[0], NULL) == ncclInProgress);
	CHECK(fk_all_reduce(&a, &a, 1, 2, 0, c[0], NULL) == ncclInvalidArgument);
	said("the last call is in progress");

	begin(c, 2, 0);
	CHECK(fk_all_reduce(&a, &a, 1, 2, 0, c[0], NULL) == ncclInProgress);
	CHECK(fk_all_reduce(&b, &b, 1, 3, 0, c[1], NULL) == ncclInvalidUsage);
	CHECK(fk_async_error(c[0], &r) == ncclSuccess && r == ncclInvalidUsage);
	CHECK(fk_destroy(c[0]) == ncclInvalidUsage);
	said("members make different calls");

	begin(c, 2, 0);
	CHECK(fk_send(&a, 1, 2, 1, c[0], NULL) == ncclInProgress);
	CHECK(fk_destroy(c[0]) == ncclInvalidArgument);
	said("of what has failed or is in progress");

	// A whole life, which leaves nothing.
	begin(c, 2, 0);
	CHECK(fk_group_start() == ncclSuccess);
	CHECK(fk_all_reduce(&a, &a, 1, 2, 0, c[0], NULL) == ncclSuccess);
	CHECK(fk_all_reduce(&b, &b, 1, 2, 0, c[1], NULL) == ncclSuccess);
	CHECK(a == 1 && fk_group_end() == ncclInProgress);
	CHECK(fk_async_error(c[0], &r) == ncclSuccess && r == ncclSuccess);
	CHECK(a == 3 && b == 3);
	CHECK(fk_finalize(c[0]) == ncclInProgress && fk_finalize(c[1]) == ncclSuccess);
	CHECK(fk_destroy(c[0]) == ncclSuccess && fk_destroy(c[1]) == ncclSuccess);
	CHECK(fake_live(0) == 0);
	CHECK(fake_fail("ncclNone", 1, 1) == -1 && fake_fail("ncclGetVersion", 0, 1) == -1);
	char *text = fake_violations();
	CHECK(*text == 0);
	free(text);
	fake_reset();
	return 0;
}
