// What the operations do with memory, which is the process's own. They run when all
// members have queued theirs.
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t size_of(int type) {
	static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
	return type >= 0 && type < (int)(sizeof sizes / sizeof sizes[0]) ? sizes[type] : 0;
}

#define COMBINE(T) \
	do { \
		T *to = (T *)into; \
		const T *from = (const T *)with; \
		for (size_t i = 0; i < n; i++) \
			switch (red) { \
			case 1: to[i] = (T)(to[i] * from[i]); break; \
			case 2: to[i] = to[i] > from[i] ? to[i] : from[i]; break; \
			case 3: to[i] = to[i] < from[i] ? to[i] : from[i]; break; \
			default: to[i] = (T)(to[i] + from[i]); \
			} \
		for (size_t i = 0; last && red == 4 && i < n; i++) \
			to[i] = (T)(to[i] / (T)members); \
		return true; \
	} while (0)

// combine reduces one member's elements into the others'. It knows what C has.
static bool combine(void *into, const void *with, size_t n, int type, int red, int members, bool last) {
	switch (type) {
	case 0: COMBINE(int8_t);
	case 1: COMBINE(uint8_t);
	case 2: COMBINE(int32_t);
	case 3: COMBINE(uint32_t);
	case 4: COMBINE(int64_t);
	case 5: COMBINE(uint64_t);
	case 7: COMBINE(float);
	case 8: COMBINE(double);
	}
	return false;
}

// reduce is all members' sources as one, from malloc.
static char *reduce(struct op **ops, int members, size_t n) {
	size_t bytes = n * size_of(ops[0]->type);
	char *out = malloc(bytes + 1);
	if (out == NULL)
		abort();
	if (bytes > 0)
		memcpy(out, ops[0]->src, bytes);
	for (int i = 1; bytes > 0 && i < members; i++)
		if (!combine(out, ops[i]->src, n, ops[0]->type, ops[0]->red, members, i == members - 1)) {
			free(out);
			return NULL;
		}
	return out;
}

static void put(char *to, const char *from, size_t n) {
	if (n > 0 && to != from)
		memmove(to, from, n);
}

static bool collective(struct op **ops, int members) {
	const struct op *first = ops[0];
	size_t bytes = first->count * size_of(first->type);
	bool scatter = first->symbol == SYM_reduce_scatter;
	if (first->symbol == SYM_broadcast) {
		for (int i = 0; i < members; i++)
			put(ops[i]->dst, ops[first->peer]->src, bytes);
	} else if (first->symbol == SYM_all_gather) {
		char *all = malloc(bytes * (size_t)members + 1);
		if (all == NULL)
			abort();
		for (int i = 0; i < members; i++)
			put(all + bytes * (size_t)i, ops[i]->src, bytes);
		for (int i = 0; i < members; i++)
			put(ops[i]->dst, all, bytes * (size_t)members);
		free(all);
	} else {
		char *out = reduce(ops, members, scatter ? first->count * (size_t)members : first->count);
		if (out == NULL)
			return false;
		for (int i = 0; i < members; i++)
			if (first->symbol != SYM_reduce || i == first->peer)
				put(ops[i]->dst, scatter ? out + bytes * (size_t)i : out, bytes);
		free(out);
	}
	return true;
}

static void remove_op(struct op *o) {
	struct op **at = &o->comm->ops;
	while (*at != o)
		at = &(*at)->next;
	*at = o->next;
	free(o);
}

static void fail(struct group *g, const char *why) {
	violate("%s", why);
	for (int i = 0; i < g->size; i++)
		if (g->members[i] != NULL)
			g->members[i]->error = ncclInvalidUsage;
}

// one runs a collective that all members have queued.
static bool one(struct group *g) {
	struct op *ops[MAX_RANKS] = {0};
	for (int i = 0; i < g->size; i++) {
		if (g->members[i] == NULL || g->members[i]->killed)
			return false;
		ops[i] = g->members[i]->ops;
		while (ops[i] != NULL && ops[i]->symbol >= FIRST_P2P)
			ops[i] = ops[i]->next;
		if (ops[i] == NULL)
			return false;
		if (ops[i]->symbol != ops[0]->symbol || ops[i]->count != ops[0]->count || ops[i]->type != ops[0]->type ||
				ops[i]->red != ops[0]->red || ops[i]->peer != ops[0]->peer) {
			fail(g, "members make different calls");
			return false;
		}
	}
	if (!collective(ops, g->size)) {
		fail(g, "the fake reduces no such type");
		return false;
	}
	for (int i = 0; i < g->size; i++)
		remove_op(ops[i]);
	g->connected = true;
	return true;
}

static struct op *with_peer(ncclComm_t c, int symbol, int peer) {
	struct op *o = c == NULL || c->killed ? NULL : c->ops;
	while (o != NULL && (o->symbol != symbol || o->peer != peer))
		o = o->next;
	return o;
}

// pair runs a Send from one member to another with its Recv.
static bool pair(struct group *g, int from, int to) {
	struct op *send = with_peer(g->members[from], SYM_send, to);
	struct op *recv = with_peer(g->members[to], SYM_recv, from);
	if (send == NULL || recv == NULL)
		return false;
	if (send->count != recv->count || send->type != recv->type) {
		fail(g, "Send and Recv differ");
		return false;
	}
	put(recv->dst, send->src, send->count * size_of(send->type));
	remove_op(send);
	remove_op(recv);
	g->connected = true;
	return true;
}

void run_ops(struct group *g) {
	for (int i = 0; i < g->size; i++)
		if (g->members[i] != NULL && g->members[i]->error != ncclSuccess)
			return;
	while (one(g)) {
	}
	for (int i = 0; i < g->size; i++)
		for (int k = 0; k < g->size; k++)
			while (pair(g, i, k)) {
			}
}
