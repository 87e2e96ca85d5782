#include "shims.h"

#include <pthread.h>
#include <string.h>

static const struct {
	const char *name;
	int required;
	size_t offset; // in cuvmm_api
} symbols[] = {
#define CUVMM_NEED(field, symbol, params) {symbol, 1, offsetof(struct cuvmm_api, field)},
#define CUVMM_MAY(field, symbol, params) {symbol, 0, offsetof(struct cuvmm_api, field)},
	CUVMM_SYMBOLS(CUVMM_NEED, CUVMM_MAY)
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
