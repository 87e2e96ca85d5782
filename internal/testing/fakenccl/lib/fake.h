// What the parts of the fake NCCL share.
#ifndef FAKE_NCCL_H
#define FAKE_NCCL_H

#define _GNU_SOURCE

#include "control.h"
#include "symbols.h"

#include <stdbool.h>
#include <stdint.h>

// What a test sets otherwise in its copy of the library, before it loads that.
extern __attribute__((visibility("protected"))) volatile int fake_version;

enum {
#define INDEX(result, field, symbol, params) SYM_##field,
	CUVMM_NCCL_SYMBOLS(INDEX, INDEX)
#undef INDEX
	SYM_COUNT
};

// NCCL's functions. The compiler holds each to its entry in symbols.h, and the label
// gives it the exported name that stands there.
#pragma GCC visibility push(default)
#define DECLARE(result, field, symbol, params) result fk_##field params __asm__(symbol);
CUVMM_NCCL_SYMBOLS(DECLARE, DECLARE)
#undef DECLARE
#pragma GCC visibility pop

enum { MAX_RANKS = 16, FIRST_P2P = SYM_send };

// op is one operation that a member has queued.
struct op {
	struct op *next;
	ncclComm_t comm;
	int symbol, type, red, peer;
	const char *src;
	char *dst;
	size_t count;
	cudaStream_t stream;
};

// reg is a registration or a window of a communicator.
struct reg {
	struct reg *next;
	bool window;
};

// group is the communicators of one unique ID, or the children of those.
struct group {
	struct group *next;
	ncclUniqueId id;
	int generation; // of the children: 0 for those that were not split from others
	int size, joined;
	ncclComm_t members[MAX_RANKS]; // NULL: has not joined yet, or has ended
	bool ended;                    // a member has ended or was killed
	bool connected;                // an operation has run
};

// family is what a communicator shares with its children.
struct family {
	int members;
	bool aborted;
};

struct ncclComm {
	ncclComm_t next;
	struct group *group;
	struct family *family;
	int rank, polls;
	bool blocking, killed, finalized;
	int inside; // calls that wait in it
	ncclResult_t error;
	struct op *ops;
	struct reg *regs;
	ncclComm_t child, *child_out; // to be written when all members have split
	ncclWindow_t *window;         // to be written when all members have registered theirs
	size_t window_size;
};

// A call begins with ENTER: it holds the lock until the function returns, counts the
// call, and returns the code of a planned failure.
struct call {
	bool refused;
	ncclResult_t code;
};

struct call enter(int symbol);
void leave(struct call *c);

// wait_for_others gives the lock to other calls until one of them has left.
void wait_for_others(void);

#define LOCKED(field) __attribute__((cleanup(leave))) struct call call = enter(SYM_##field)
#define ENTER(field) \
	LOCKED(field); \
	if (call.refused) \
		return call.code

// violate records what a correct program would not have done, and note a call.
__attribute__((format(printf, 1, 2))) void violate(const char *format, ...);
__attribute__((format(printf, 1, 2))) void note(const char *format, ...);

extern ncclComm_t comms;
extern struct group *groups;
extern int planned_polls;
extern char last_error[256];
void end_comm(ncclComm_t c);
size_t size_of(int type);

// settle_group does what all members of a group have begun, and run_ops the operations.
void settle_group(struct group *g);
void run_ops(struct group *g);

#endif
