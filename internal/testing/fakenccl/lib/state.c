// The count of calls, the planned failures, and the control functions.
#include "fake.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ncclComm_t comms;
struct group *groups;
int planned_polls;
char last_error[256];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
static long long calls[SYM_COUNT];
static struct {
	int left; // calls until the failure, 0: none is planned
	int code;
} plans[SYM_COUNT];
static int running; // the symbol of the call that has the lock

static struct text {
	char *at;
	size_t size;
} violations, notes;

#define NAME(result, field, symbol, params) symbol,
static const char *const names[] = {CUVMM_NCCL_SYMBOLS(NAME, NAME)};

static void add(struct text *t, const char *format, va_list args) {
	char line[512];
	int n = snprintf(line, sizeof line, "%s ", names[running]);
	vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
	strcat(line, "\n");
	size_t length = strlen(line);
	char *grown = realloc(t->at, t->size + length + 1);
	if (grown == NULL)
		abort();
	memcpy(grown + t->size, line, length + 1);
	t->at = grown;
	t->size += length;
}

void violate(const char *format, ...) {
	va_list args;
	va_start(args, format);
	add(&violations, format, args);
	va_end(args);
	va_start(args, format);
	vsnprintf(last_error, sizeof last_error, format, args);
	va_end(args);
}

void note(const char *format, ...) {
	va_list args;
	va_start(args, format);
	add(&notes, format, args);
	va_end(args);
}

struct call enter(int symbol) {
	struct call c = {0};
	pthread_mutex_lock(&lock);
	running = symbol;
	calls[symbol]++;
	if (plans[symbol].left > 0 && --plans[symbol].left == 0) {
		c = (struct call){true, plans[symbol].code};
		snprintf(last_error, sizeof last_error, "%s was made to fail", names[symbol]);
	}
	return c;
}

void leave(struct call *c) {
	(void)c;
	pthread_cond_broadcast(&left);
	pthread_mutex_unlock(&lock);
}

void wait_for_others(void) {
	int symbol = running;
	pthread_cond_wait(&left, &lock);
	running = symbol;
}

static int find(const char *symbol) {
	for (int i = 0; i < SYM_COUNT; i++)
		if (strcmp(names[i], symbol) == 0)
			return i;
	return -1;
}

static void clear(struct text *t) {
	free(t->at);
	*t = (struct text){0};
}

void fake_reset(void) {
	pthread_mutex_lock(&lock);
	while (comms != NULL)
		end_comm(comms);
	while (groups != NULL) { // whose members have all ended
		struct group *next = groups->next;
		free(groups);
		groups = next;
	}
	memset(calls, 0, sizeof calls);
	memset(plans, 0, sizeof plans);
	planned_polls = 0;
	last_error[0] = 0;
	clear(&violations);
	clear(&notes);
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

void fake_polls(int n) {
	pthread_mutex_lock(&lock);
	planned_polls = n;
	pthread_mutex_unlock(&lock);
}

int fake_kill(int rank, int code) {
	int n = 0;
	pthread_mutex_lock(&lock);
	for (ncclComm_t c = comms; c != NULL; c = c->next)
		if (c->rank == rank && !c->killed) {
			c->killed = true;
			c->group->ended = true;
			n += c->group->generation == 0;
			for (int i = 0; code != 0 && i < c->group->size; i++)
				if (i != rank && c->group->members[i] != NULL)
					c->group->members[i]->error = code;
		}
	if (n > 0)
		snprintf(last_error, sizeof last_error, "rank %d is gone", rank);
	pthread_cond_broadcast(&left);
	pthread_mutex_unlock(&lock);
	return n;
}

static char *copy(const struct text *t) {
	pthread_mutex_lock(&lock);
	char *text = strdup(t->at ? t->at : "");
	pthread_mutex_unlock(&lock);
	return text;
}

char *fake_violations(void) { return copy(&violations); }
char *fake_log(void) { return copy(&notes); }

int fake_live(int what) {
	int n = 0;
	pthread_mutex_lock(&lock);
	for (ncclComm_t c = comms; c != NULL; c = c->next) {
		n += what == 0;
		n += what == 3 ? c->inside : 0;
		for (struct reg *r = c->regs; r != NULL; r = r->next)
			n += what == (r->window ? 2 : 1);
	}
	pthread_mutex_unlock(&lock);
	return n;
}
