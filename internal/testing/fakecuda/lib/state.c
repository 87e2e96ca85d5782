// The record of calls, the planned faults, and the control functions.
#include "fake.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Settings have to lie in the file, so those that are zero do, too.
#define SETTING __attribute__((section(".data"))) volatile int
SETTING fake_init = CUDA_SUCCESS;
SETTING fake_version = 13000;
SETTING fake_fabric = 0;
SETTING fake_node = 0;
SETTING fake_numa_id = 0;

struct state fake = {
	.devices = DEVICES,
	.device = {[0 ... MAX_DEVICES - 1] = {.total = BYTES}},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialised;
static unsigned int generation; // of resets: a thread's stack is of one

static struct {
	long long calls;
	char arguments[512]; // of the last
} records[SYM_COUNT];

#define NAME(field, symbol, params) symbol,
#define NAME_OLD(field, symbol) symbol,
static const char *const names[] = {CUVMM_SYMBOLS(NAME, NAME) OTHER_SYMBOLS(NAME) OLD_SYMBOLS(NAME_OLD)};

static struct plan {
	struct plan *next;
	int symbol; // -1: any
	int left;
	CUresult code;
} *plans;

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static int paused = -1; // the symbol whose calls wait
static int waiting;

static int running; // the symbol of the call that has the lock
static char *violations;

void violate(const char *format, ...) {
	char text[512];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	size_t old = violations ? strlen(violations) : 0;
	size_t need = old + strlen(names[running]) + strlen(text) + 4;
	char *grown = realloc(violations, need);
	if (grown == NULL)
		return;
	violations = grown;
	snprintf(violations + old, need - old, "%s: %s\n", names[running], text);
}

// planned removes the first fault that is due from the list.
static bool planned(int symbol, CUresult *code) {
	bool due = false;
	for (struct plan **at = &plans; *at != NULL;) {
		struct plan *p = *at;
		bool counts = p->symbol == symbol || p->symbol < 0;
		if (counts && p->left > 1)
			p->left--;
		else if (counts && !due) {
			due = true;
			*code = p->code;
			*at = p->next;
			free(p);
			continue;
		}
		at = &p->next;
	}
	return due;
}

static bool needs_init(int symbol) {
	return symbol != SYM_init && symbol != SYM_driver_version && symbol != SYM_error_name && symbol != SYM_error_string;
}

struct call enter(int symbol, const char *format, ...) {
	struct call c = {.code = CUDA_SUCCESS};
	va_list args;
	pthread_mutex_lock(&gate);
	for (waiting += paused == symbol; paused == symbol;)
		pthread_cond_wait(&opened, &gate);
	pthread_mutex_unlock(&gate);
	pthread_mutex_lock(&lock);
	running = symbol;
	fresh_thread(generation);
	records[symbol].calls++;
	va_start(args, format);
	vsnprintf(records[symbol].arguments, sizeof records[symbol].arguments, format, args);
	va_end(args);
	c.refused = planned(symbol, &c.code);
	if (!c.refused && !initialised && needs_init(symbol)) {
		violate("called before cuInit");
		c.refused = true;
		c.code = CUDA_ERROR_NOT_INITIALIZED;
	}
	return c;
}

void leave(struct call *c) {
	(void)c;
	pthread_mutex_unlock(&lock);
}

static pthread_mutex_t meetings = PTHREAD_MUTEX_INITIALIZER;
static struct meeting *under_way;

static bool must_not_meet(const struct meeting *a, const struct meeting *b) {
	if (a->device != b->device || (a->kind == CHANGES) == (b->kind == CHANGES))
		return false;
	return a->kind == LOOKS_AT_CONTEXT || b->kind == LOOKS_AT_CONTEXT || a->stream == b->stream;
}

void meet(struct meeting *m, int symbol, enum meeting_kind kind, CUstream stream) {
	bool met = false;
	*m = (struct meeting){.kind = kind, .device = current(), .stream = stream};
	pthread_mutex_lock(&meetings);
	for (struct meeting *o = under_way; o != NULL; o = o->next)
		met = met || must_not_meet(m, o);
	m->next = under_way;
	under_way = m;
	pthread_mutex_unlock(&meetings);
	if (!met)
		return;
	pthread_mutex_lock(&lock);
	running = symbol;
	violate("meets a call that must not run beside it: on a card the process dies");
	pthread_mutex_unlock(&lock);
}

void part(struct meeting *m) {
	pthread_mutex_lock(&meetings);
	struct meeting **at = &under_way;
	while (*at != m)
		at = &(*at)->next;
	*at = m->next;
	pthread_mutex_unlock(&meetings);
}

CUresult cu_init(unsigned int flags) {
	ENTER(init, "flags=%u", flags);
	if (flags != 0) {
		violate("flags are %u", flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (fake_init != CUDA_SUCCESS)
		return (CUresult)fake_init;
	if (fake.devices == 0)
		return CUDA_ERROR_NO_DEVICE;
	initialised = true;
	return CUDA_SUCCESS;
}

static CUresult wrong_version(int symbol) {
	__attribute__((cleanup(leave))) struct call call = enter(symbol, "%s", "");
	violate("wrong version called: the plain name is the oldest revision");
	return CUDA_ERROR_UNKNOWN;
}

#define DEFINE_OLD(field, symbol) \
	CUresult cu_##field(void) { return wrong_version(SYM_##field); }
OLD_SYMBOLS(DEFINE_OLD)

static int find(const char *symbol) {
	for (int i = 0; i < SYM_COUNT; i++)
		if (strcmp(names[i], symbol) == 0)
			return i;
	return -1;
}

static void forget(void) {
	reset_graphs();
	reset_modules();
	reset_streams();
	reset_plain();
	reset_pools();
	reset_foreign();
	reset_memory();
	for (struct plan *p = plans; p != NULL;) {
		struct plan *next = p->next;
		free(p);
		p = next;
	}
	plans = NULL;
	free(violations);
	violations = NULL;
	memset(records, 0, sizeof records);
	generation++;
	fake.lost = false;
	for (int i = 0; i < MAX_DEVICES; i++) {
		struct device *d = &fake.device[i];
		*d = (struct device){.total = d->total, .epoch = d->epoch + 1};
	}
}

void fake_reset(void) {
	pthread_mutex_lock(&lock);
	forget();
	pthread_mutex_unlock(&lock);
}

void fake_configure(int devices, unsigned long long bytes) {
	pthread_mutex_lock(&lock);
	forget();
	fake.devices = devices < 0 ? 0 : devices > MAX_DEVICES ? MAX_DEVICES : devices;
	for (int i = 0; i < MAX_DEVICES; i++)
		fake.device[i].total = bytes;
	pthread_mutex_unlock(&lock);
}

int fake_fail(const char *symbol, int k, int code) {
	int i = *symbol == 0 ? -1 : find(symbol);
	if (k < 1 || (*symbol != 0 && i < 0))
		return -1;
	struct plan *p = malloc(sizeof *p);
	if (p == NULL)
		return -1;
	pthread_mutex_lock(&lock);
	*p = (struct plan){.next = plans, .symbol = i, .left = k, .code = (CUresult)code};
	plans = p;
	pthread_mutex_unlock(&lock);
	return 0;
}

long long fake_calls(const char *symbol) {
	long long n = -1;
	int i = find(symbol);
	pthread_mutex_lock(&lock);
	if (i >= 0) {
		n = records[i].calls;
	} else if (*symbol == 0) {
		n = 0;
		for (int j = 0; j < SYM_COUNT; j++)
			n += records[j].calls;
	}
	pthread_mutex_unlock(&lock);
	return n;
}

char *fake_last(const char *symbol) {
	char *text = NULL;
	int i = find(symbol);
	pthread_mutex_lock(&lock);
	if (i >= 0 && records[i].calls > 0 && asprintf(&text, "%s %s", symbol, records[i].arguments) < 0)
		text = NULL;
	pthread_mutex_unlock(&lock);
	return text;
}

static int pushed(void) {
	int n = 0;
	for (int i = 0; i < MAX_DEVICES; i++)
		n += fake.device[i].pushed;
	return n;
}

char *fake_violations(void) {
	char *text = NULL;
	pthread_mutex_lock(&lock);
	int n = pushed();
	const char *said = violations ? violations : "";
	size_t need = strlen(said) + 64;
	if ((text = malloc(need)) != NULL)
		strcpy(text, said);
	if (text != NULL && n > 0)
		snprintf(text + strlen(said), 64, "%d contexts are left pushed\n", n);
	pthread_mutex_unlock(&lock);
	return text;
}

void fake_live(struct fake_count *out) {
	struct fake_count c = {0};
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < fake.handle_room; i++)
		c.handles += fake.handles[i].chunk != NULL;
	for (struct reservation *r = fake.reservations; r != NULL; r = r->next)
		c.reservations++;
	for (size_t i = 0; i < fake.span_count; i++) {
		c.mappings += fake.spans[i].kind == MAPPED;
		c.plain += fake.spans[i].kind == PLAIN;
		c.pinned += fake.spans[i].kind == PINNED;
	}
	for (int i = 0; i < MAX_DEVICES; i++)
		c.contexts += fake.device[i].retained;
	count_streams(&c);
	count_graphs(&c);
	count_modules(&c);
	count_pools(&c);
	count_peers(&c);
	c.pushed = pushed();
	pthread_mutex_unlock(&lock);
	*out = c;
}

int fake_pause(const char *symbol) {
	int i = *symbol == 0 ? -1 : find(symbol);
	if (*symbol != 0 && i < 0)
		return -1;
	pthread_mutex_lock(&gate);
	paused = i;
	waiting = 0;
	pthread_cond_broadcast(&opened);
	pthread_mutex_unlock(&gate);
	return 0;
}

int fake_paused(void) {
	pthread_mutex_lock(&gate);
	int n = waiting;
	pthread_mutex_unlock(&gate);
	return n;
}

int fake_foreign(int device, unsigned long long n, unsigned char *memory, unsigned char *event, unsigned char *token) {
	pthread_mutex_lock(&lock);
	int fd = new_foreign(device, n, memory, event, token);
	pthread_mutex_unlock(&lock);
	return fd;
}

void fake_end(void) {
	pthread_mutex_lock(&lock);
	for (struct foreign *f = fake.foreign; f != NULL; f = f->next)
		f->ended = true;
	pthread_mutex_unlock(&lock);
}

void fake_lose(void) {
	pthread_mutex_lock(&lock);
	fake.lost = true;
	pthread_mutex_unlock(&lock);
}

void fake_link(int from, int to, int kind) {
	pthread_mutex_lock(&lock);
	if (known_device(from) == CUDA_SUCCESS && known_device(to) == CUDA_SUCCESS)
		fake.device[from].link[to] = (unsigned char)kind;
	pthread_mutex_unlock(&lock);
}
