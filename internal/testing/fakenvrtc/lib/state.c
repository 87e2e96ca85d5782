// The count of calls, the planned failures, and the control functions.
#include "fake.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

nvrtcProgram programs;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long long calls[SYM_COUNT];
static struct {
	int left; // calls until the failure, 0: none is planned
	int code;
} plans[SYM_COUNT];
static int running; // the symbol of the call that has the lock
static struct text violations;

#define NAME(result, field, symbol, params) symbol,
static const char *const names[] = {CUVMM_NVRTC_SYMBOLS(NAME)};

void add_bytes(struct text *t, const void *bytes, size_t n) {
	char *grown = realloc(t->at, t->size + n + 1);
	if (grown == NULL)
		abort();
	memcpy(grown + t->size, bytes, n);
	t->at = grown;
	t->size += n;
	grown[t->size] = 0;
}

void add(struct text *t, const char *format, ...) {
	char *line = NULL;
	va_list args;
	va_start(args, format);
	int n = vasprintf(&line, format, args);
	va_end(args);
	if (n < 0)
		abort();
	add_bytes(t, line, (size_t)n);
	free(line);
}

void violate(const char *format, ...) {
	char text[512];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	add(&violations, "%s: %s\n", names[running], text);
}

struct call enter(int symbol) {
	struct call c = {0};
	pthread_mutex_lock(&lock);
	running = symbol;
	calls[symbol]++;
	if (plans[symbol].left > 0 && --plans[symbol].left == 0)
		c = (struct call){true, plans[symbol].code};
	return c;
}

void leave(struct call *c) {
	(void)c;
	pthread_mutex_unlock(&lock);
}

static int find(const char *symbol) {
	for (int i = 0; i < SYM_COUNT; i++)
		if (strcmp(names[i], symbol) == 0)
			return i;
	return -1;
}

void fake_reset(void) {
	pthread_mutex_lock(&lock);
	while (programs != NULL)
		end_program(programs);
	memset(calls, 0, sizeof calls);
	memset(plans, 0, sizeof plans);
	free(violations.at);
	violations = (struct text){0};
	pthread_mutex_unlock(&lock);
}

int fake_fail(const char *symbol, int k, int code) {
	int i = find(symbol);
	if (i < 0 || k < 1)
		return -1;
	pthread_mutex_lock(&lock);
	plans[i].left = k;
	plans[i].code = code;
	pthread_mutex_unlock(&lock);
	return 0;
}

long long fake_calls(const char *symbol) {
	long long n = 0;
	int only = find(symbol);
	if (only < 0 && *symbol != 0)
		return -1;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < SYM_COUNT; i++)
		if (only < 0 || i == only)
			n += calls[i];
	pthread_mutex_unlock(&lock);
	return n;
}

char *fake_violations(void) {
	pthread_mutex_lock(&lock);
	char *text = strdup(violations.at ? violations.at : "");
	pthread_mutex_unlock(&lock);
	return text;
}

int fake_live(void) {
	int n = 0;
	pthread_mutex_lock(&lock);
	for (nvrtcProgram p = programs; p != NULL; p = p->next)
		n++;
	pthread_mutex_unlock(&lock);
	return n;
}
