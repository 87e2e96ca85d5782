// The symbols of libcuda, forks, and the first calls.
#include "internal.h"

#include <pthread.h>
#include <string.h>

static const struct {
	const char *name;
	int required;
	size_t offset; // in cuvmm_api
} symbols[] = {
#define REQUIRED(field, symbol, params) {symbol, 1, offsetof(struct cuvmm_api, field)},
#define OPTIONAL(field, symbol, params) {symbol, 0, offsetof(struct cuvmm_api, field)},
	CUVMM_SYMBOLS(REQUIRED, OPTIONAL)
};

int cuvmm_symbol_count(void) { return sizeof symbols / sizeof symbols[0]; }
const char *cuvmm_symbol_name(int i) { return symbols[i].name; }
int cuvmm_symbol_required(int i) { return symbols[i].required; }

void cuvmm_bind(struct cuvmm_api *api, int i, void *address) {
	memcpy((char *)api + symbols[i].offset, &address, sizeof address);
}

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
