// Communicators: how they begin and end, what is in progress, and registrations.
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((section(".data"))) volatile int fake_version = 22809;

ncclResult_t fk_version(int *version) {
	ENTER(version);
	*version = fake_version;
	return ncclSuccess;
}

ncclResult_t fk_unique_id(ncclUniqueId *id) {
	static int made;
	ENTER(unique_id);
	memset(id, 0x5a, sizeof *id); // no byte of it ends a text
	snprintf(id->internal, sizeof id->internal, "fake-nccl-%d", ++made);
	return ncclSuccess;
}

// It reads nothing that changes, so it takes no lock and cannot be made to fail.
const char *fk_error_string(ncclResult_t result) {
	static const char *const text[] = {
		"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument",
		"invalid usage", "remote process exited or there was a network error", "NCCL operation in progress",
	};
	return result >= 0 && result < (int)(sizeof text / sizeof text[0]) ? text[result] : "unknown result code";
}

// It has no lock either: the caller has just left a call that failed.
const char *fk_last_error(ncclComm_t comm) {
	(void)comm;
	return last_error;
}

static ncclResult_t wrong(const char *what) {
	snprintf(last_error, sizeof last_error, "%s", what);
	return ncclInvalidArgument;
}

static void end_group(struct group *g) {
	for (int i = 0; i < g->size; i++)
		if (g->members[i] != NULL)
			return;
	for (struct group **at = &groups; *at != NULL; at = &(*at)->next)
		if (*at == g) {
			*at = g->next;
			free(g);
			return;
		}
}

void end_comm(ncclComm_t c) {
	for (ncclComm_t *at = &comms; *at != NULL; at = &(*at)->next)
		if (*at == c) {
			*at = c->next;
			break;
		}
	while (c->ops != NULL) {
		struct op *next = c->ops->next;
		free(c->ops);
		c->ops = next;
	}
	while (c->regs != NULL) {
		struct reg *next = c->regs->next;
		free(c->regs);
		c->regs = next;
	}
	c->group->members[c->rank] = NULL;
	// After ncclCommFinalize no other member waits for this one.
	c->group->ended |= !c->finalized;
	end_group(c->group);
	if (--c->family->members == 0)
		free(c->family);
	free(c);
}

static bool lives(ncclComm_t comm) {
	for (ncclComm_t c = comms; c != NULL; c = c->next)
		if (c == comm)
			return true;
	violate("no such communicator");
	return false;
}

static bool good_config(const ncclConfig_t *c, int blocking) {
	if (c == NULL || c->size < 48 || c->magic != 0xcafebeef) {
		violate("no config");
		return false;
	}
	const ncclConfig_t unset = NCCL_CONFIG_INITIALIZER;
	ncclConfig_t others = *c;
	others.blocking = INT_MIN;
	if (c->blocking != blocking)
		violate("blocking is %d", c->blocking);
	if (c->splitShare != 1)
		violate("splitShare is %d", c->splitShare);
	if (c->version < 21700 || memcmp(&c->cgaClusterSize, &unset.cgaClusterSize, 12) != 0)
		violate("a config that is not initialised");
	if (c->size > sizeof *c || (c->size == sizeof *c && others.nvlinkCentricSched != INT_MIN))
		violate("a config of %zu bytes", c->size);
	return true;
}

static struct group *find_group(ncclUniqueId id, int generation, int size) {
	for (struct group *g = groups; g != NULL; g = g->next)
		if (g->generation == generation && memcmp(&g->id, &id, sizeof id) == 0)
			return g;
	struct group *g = calloc(1, sizeof *g);
	if (g == NULL)
		abort();
	*g = (struct group){.next = groups, .id = id, .generation = generation, .size = size};
	return groups = g;
}

static ncclResult_t now(ncclComm_t c);

// add_comm makes the communicator of a rank that has none.
static ncclComm_t add_comm(struct group *g, int rank, struct family *family) {
	ncclComm_t c = calloc(1, sizeof *c);
	if (c == NULL)
		abort();
	*c = (struct ncclComm){.next = comms, .group = g, .rank = rank, .family = family};
	comms = g->members[rank] = c;
	family->members++;
	g->joined++;
	return c;
}

ncclResult_t fk_init(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
	ENTER(init);
	if (comm == NULL || !good_config(config, 0))
		return ncclInvalidArgument;
	*comm = NULL;
	if (size < 1 || size > MAX_RANKS || rank < 0 || rank >= size)
		return wrong("invalid rank requested");
	struct group *g = find_group(id, 0, size);
	if (g->size != size || g->members[rank] != NULL) {
		end_group(g);
		return wrong("another member has this rank, or another size");
	}
	struct family *family = calloc(1, sizeof *family);
	if (family == NULL)
		abort();
	*comm = add_comm(g, rank, family);
	(*comm)->polls = planned_polls;
	note("rank=%d size=%d", rank, size);
	return now(*comm);
}

static ncclResult_t ready(ncclComm_t c);

ncclResult_t fk_split(ncclComm_t c, int color, int key, ncclComm_t *child, ncclConfig_t *config) {
	ENTER(split);
	ncclResult_t r = ready(c);
	if (r != ncclSuccess)
		return r;
	if (c->blocking || child == NULL || color != 0 || key != c->rank || !good_config(config, 1)) {
		violate("a child of rank %d with color %d and key %d", c->rank, color, key);
		return ncclInvalidArgument;
	}
	*child = NULL;
	c->child = add_comm(find_group(c->group->id, c->group->generation + 1, c->group->size), c->rank, c->family);
	c->child->blocking = true;
	c->child_out = child;
	c->polls = planned_polls;
	note("rank=%d", c->rank);
	return now(c);
}

// now is what has become of what the communicator has begun.
static ncclResult_t now(ncclComm_t c) {
	struct group *g = c->group;
	if (c->error != ncclSuccess)
		return c->error;
	settle_group(g);
	if (c->error != ncclSuccess)
		return c->error;
	if (c->killed || c->polls != 0 || g->joined < g->size || c->ops != NULL || c->window != NULL)
		return ncclInProgress;
	if (c->child != NULL) {
		if (c->child->group->joined < g->size)
			return ncclInProgress;
		*c->child_out = c->child;
		c->child = NULL;
	}
	for (int i = 0; c->finalized && !g->ended && i < g->size; i++)
		if (g->members[i] != NULL && !g->members[i]->finalized)
			return ncclInProgress;
	return ncclSuccess;
}

// done is what a call returns that has begun something: at once, or once that is done if the
// communicator blocks.
static ncclResult_t done(ncclComm_t c) {
	c->polls = c->blocking ? 0 : planned_polls;
	ncclResult_t r = now(c);
	c->inside++;
	while (c->blocking && r == ncclInProgress) {
		if (c->family->aborted)
			r = ncclInternalError;
		else
			wait_for_others();
		if (r == ncclInProgress)
			r = now(c);
	}
	c->inside--;
	return r;
}

ncclResult_t fk_async_error(ncclComm_t c, ncclResult_t *error) {
	ENTER(async_error);
	if (error == NULL || !lives(c))
		return ncclInvalidArgument;
	if (c->polls > 0)
		c->polls--;
	*error = now(c);
	return ncclSuccess;
}

// ready is ncclSuccess for a communicator with which something may be begun.
static ncclResult_t ready(ncclComm_t c) {
	if (!lives(c))
		return ncclInvalidArgument;
	ncclResult_t r = now(c);
	if (r == ncclInProgress) {
		violate("rank %d: the last call is in progress", c->rank);
		return ncclInvalidArgument;
	}
	return r;
}

ncclResult_t fk_finalize(ncclComm_t c) {
	ENTER(finalize);
	ncclResult_t r = ready(c);
	if (r != ncclSuccess)
		return r;
	if (c->finalized) {
		violate("rank %d: finalized twice", c->rank);
		return ncclInvalidArgument;
	}
	note("rank=%d", c->rank);
	c->finalized = true;
	return done(c);
}

ncclResult_t fk_destroy(ncclComm_t c) {
	ENTER(destroy);
	ncclResult_t r = ready(c);
	if (r != ncclSuccess) {
		violate("of what has failed or is in progress: %d", r);
		return r;
	}
	note("rank=%d", c->rank);
	end_comm(c);
	return ncclSuccess;
}

ncclResult_t fk_abort(ncclComm_t c) {
	ENTER(abort);
	if (!lives(c))
		return ncclInvalidArgument;
	if (c->inside > 0)
		violate("rank %d: a call is made", c->rank);
	note("rank=%d", c->rank);
	c->family->aborted = true;
	if (c->child != NULL)
		*c->child_out = c->child; // as NCCL does where a split fails
	c->finalized = false;
	end_comm(c);
	return ncclSuccess;
}

static struct reg *add_reg(ncclComm_t c, bool window) {
	struct reg *r = calloc(1, sizeof *r);
	if (r == NULL)
		abort();
	*r = (struct reg){.next = c->regs, .window = window};
	return c->regs = r;
}

static ncclResult_t remove_reg(ncclComm_t c, void *handle, bool window) {
	for (struct reg **at = &c->regs; *at != NULL; at = &(*at)->next)
		if (*at == handle && (*at)->window == window) {
			struct reg *r = *at;
			*at = r->next;
			free(r);
			return ncclSuccess;
		}
	snprintf(last_error, sizeof last_error, "could not find handle");
	return ncclInvalidUsage;
}

ncclResult_t fk_reg(const ncclComm_t c, void *p, size_t size, void **handle) {
	ENTER(reg);
	ncclResult_t r = ready(c);
	if (r != ncclSuccess)
		return r;
	note("rank=%d p=%p size=%zu", c->rank, p, size);
	*handle = add_reg(c, false);
	return ncclSuccess;
}

ncclResult_t fk_dereg(const ncclComm_t c, void *handle) {
	ENTER(dereg);
	if (!lives(c))
		return ncclInvalidArgument;
	return handle == NULL ? ncclSuccess : remove_reg(c, handle, false);
}

ncclResult_t fk_window(ncclComm_t c, void *p, size_t size, ncclWindow_t *window, int flags) {
	ENTER(window);
	ncclResult_t r = ready(c);
	if (r != ncclSuccess)
		return r;
	note("rank=%d p=%p size=%zu flags=%d", c->rank, p, size, flags);
	if (p == NULL || size == 0)
		return ncclSuccess; // and no window, as NCCL
	c->window = window;
	c->window_size = size;
	return done(c);
}

ncclResult_t fk_dewindow(ncclComm_t c, ncclWindow_t window) {
	ENTER(dewindow);
	if (!lives(c))
		return ncclInvalidArgument;
	return window == NULL ? ncclSuccess : remove_reg(c, window, true);
}

// make_windows gives all members theirs once all have asked.
static void make_windows(struct group *g) {
	for (int i = 0; i < g->size; i++)
		if (g->members[i] == NULL || g->members[i]->killed || g->members[i]->window == NULL)
			return;
	for (int i = 0; i < g->size; i++) {
		ncclComm_t c = g->members[i];
		if (c->window_size != g->members[0]->window_size) {
			snprintf(last_error, sizeof last_error, "windows of different sizes");
			c->error = ncclInvalidArgument;
		} else {
			*c->window = (ncclWindow_t)(void *)add_reg(c, true);
		}
		c->window = NULL;
	}
}

void settle_group(struct group *g) {
	if (g->joined < g->size)
		return;
	make_windows(g);
	run_ops(g);
	// Nothing tells the others that a member has ended: what they begin is queued, or waits for a
	// connection if there was none before.
	for (int i = 0; g->ended && g->connected && i < g->size; i++) {
		ncclComm_t c = g->members[i];
		while (c != NULL && c->ops != NULL) {
			struct op *next = c->ops->next;
			free(c->ops);
			c->ops = next;
		}
	}
}

// The operations. In a group they are kept for the thread until it ends.
static __thread int depth;
static __thread ncclResult_t group_error;
static __thread struct op *kept, **kept_end;

// close_group ends a group of the thread's, and runs what was kept if it was the outermost.
static ncclResult_t close_group(void) {
	ncclResult_t r = group_error;
	ncclComm_t of = NULL;
	if (--depth > 0)
		return ncclSuccess;
	while (kept != NULL) {
		struct op *o = kept;
		kept = o->next;
		o->next = NULL;
		if (group_error != ncclSuccess || !lives(o->comm)) {
			free(o);
			continue;
		}
		struct op **at = &o->comm->ops;
		while (*at != NULL)
			at = &(*at)->next;
		*at = o;
		of = o->comm;
	}
	group_error = ncclSuccess;
	return of == NULL ? r : done(of);
}

static void open_group(void) {
	if (depth++ == 0)
		kept_end = &kept;
}

ncclResult_t fk_group_start(void) {
	ENTER(group_start);
	open_group();
	return ncclSuccess;
}

ncclResult_t fk_group_end(void) {
	LOCKED(group_end);
	if (depth == 0) {
		violate("not in a group");
		return ncclInvalidUsage;
	}
	if (call.refused && group_error == ncclSuccess)
		group_error = call.code;
	return close_group();
}

// check is NCCL's check of arguments.
static ncclResult_t check(const struct op *o) {
	ncclResult_t r = ready(o->comm);
	if (r != ncclSuccess)
		return r;
	if (!o->comm->blocking)
		violate("rank %d: a call of the parent", o->comm->rank);
	bool peered = o->symbol == SYM_reduce || o->symbol == SYM_broadcast || o->symbol >= FIRST_P2P;
	bool src = o->symbol != SYM_recv && (o->symbol != SYM_broadcast || o->peer == o->comm->rank);
	bool dst = o->symbol != SYM_send && (o->symbol != SYM_reduce || o->peer == o->comm->rank);
	if (peered && (o->peer < 0 || o->peer >= o->comm->group->size))
		return wrong("invalid root");
	if (o->type < 0 || size_of(o->type) == 0)
		return wrong("invalid type");
	if (o->red < 0 || o->red > 4)
		return wrong("invalid reduction operation");
	if (o->count > 0 && ((src && o->src == NULL) || (dst && o->dst == NULL)))
		return wrong("a buffer is not a valid pointer");
	return ncclSuccess;
}

static ncclResult_t queue(const struct call *call, struct op o) {
	ncclResult_t r = call->refused ? call->code : check(&o);
	bool alone = depth == 0;
	open_group();
	if (r != ncclSuccess) {
		group_error = r;
	} else {
		struct op *copy = malloc(sizeof o);
		if (copy == NULL)
			abort();
		*copy = o;
		*kept_end = copy;
		kept_end = &copy->next;
		note("rank=%d src=%p dst=%p count=%zu type=%d red=%d peer=%d stream=%p", o.comm->rank, (const void *)o.src, (void *)o.dst, o.count, o.type, o.red, o.peer, (void *)o.stream);
	}
	ncclResult_t end = close_group();
	return r != ncclSuccess || !alone ? r : end;
}

#define OP(field, ...) \
	do { \
		LOCKED(field); \
		return queue(&call, (struct op){.symbol = SYM_##field, .count = count, .type = type, .comm = comm, .stream = stream, __VA_ARGS__}); \
	} while (0)

ncclResult_t fk_all_reduce(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
	OP(all_reduce, .src = src, .dst = dst, .red = op);
}
ncclResult_t fk_reduce(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
	OP(reduce, .src = src, .dst = dst, .red = op, .peer = root);
}
ncclResult_t fk_broadcast(const void *src, void *dst, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
	OP(broadcast, .src = src, .dst = dst, .peer = root);
}
ncclResult_t fk_all_gather(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
	OP(all_gather, .src = src, .dst = dst);
}
ncclResult_t fk_reduce_scatter(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
	OP(reduce_scatter, .src = src, .dst = dst, .red = op);
}
ncclResult_t fk_send(const void *src, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
	OP(send, .src = src, .peer = peer);
}
ncclResult_t fk_recv(void *dst, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
	OP(recv, .dst = dst, .peer = peer);
}
