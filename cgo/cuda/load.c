// The symbols of libcuda, forks, and the first calls.
#include "internal.h"

#include <pthread.h>

const struct cuvmm_symbol cuvmm_symbols[] = {
#define REQUIRED(field, symbol, params) {symbol, offsetof(struct cuvmm_api, field), 1},
#define OPTIONAL(field, symbol, params) {symbol, offsetof(struct cuvmm_api, field), 0},
	CUVMM_SYMBOLS(REQUIRED, OPTIONAL)
	{0},
};

volatile int cuvmm_in_child;

static void in_child(void) { cuvmm_in_child = 1; }

int cuvmm_watch_fork(void) { return pthread_atfork(NULL, NULL, in_child); }

CUresult cuvmm_init(cuvmm_lib api) {
	CUVMM_RETURN_IF_FORKED(CUVMM_FORKED_RESULT);
	return api->init(0);
}

const char *cuvmm_error_name(cuvmm_lib api, CUresult r) {
	const char *text = NULL;
	return api->error_name(r, &text) == CUDA_SUCCESS ? text : NULL;
}

const char *cuvmm_error_text(cuvmm_lib api, CUresult r) {
	const char *text = NULL;
	return api->error_string(r, &text) == CUDA_SUCCESS ? text : NULL;
}
