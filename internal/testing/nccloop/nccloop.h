// NCCL's calls as a C program makes them, on memory of cuMemAlloc.
#ifndef NCCLOOP_H
#define NCCLOOP_H

#include <stddef.h>

struct nccloop;

// nccloop_took is what a function returns: how long the timed calls took, and for a failure
// the call and its result. Result -1 is the loader's.
typedef struct {
	long long ns;
	const char *call; // NULL: no failure
	int r;
} nccloop_took;

// nccloop_way is the kind of communicator: one that blocks; one that does not, where each call is
// followed by asking whether it is done; and one that blocks, which was split off one that does not,
// and shares its resources.
enum nccloop_way { NCCLOOP_BLOCKING, NCCLOOP_NONBLOCKING, NCCLOOP_CHILD };

enum nccloop_op { NCCLOOP_ALL_REDUCE, NCCLOOP_ALL_GATHER, NCCLOOP_SEND_RECV, NCCLOOP_GATHER_UNEQUAL };

nccloop_took nccloop_id(const char *nccl, char id[128]);
// nccloop_open makes a communicator and two buffers of that many bytes.
nccloop_took nccloop_open(struct nccloop **out, const char *cuda, const char *nccl, int dev, const char id[128], int rank, int size, enum nccloop_way way, size_t bytes);
nccloop_took nccloop_close(struct nccloop *l);
// nccloop_begin makes one call and does not wait for it, and nccloop_abort ends a group that has
// lost a member, with the call.
nccloop_took nccloop_begin(struct nccloop *l);
nccloop_took nccloop_abort(struct nccloop *l);
// nccloop_use has the calls use other memory than the buffers; with 0 the buffers again.
void nccloop_use(struct nccloop *l, unsigned long long a, unsigned long long b);
// nccloop_watch has an event recorded before and after each call, or not.
void nccloop_watch(struct nccloop *l, int watched);
// nccloop_run makes n calls and waits for them. bytes has how many each rank sends; only the
// unequal gather looks at more than its own.
nccloop_took nccloop_run(struct nccloop *l, enum nccloop_op op, const size_t *bytes, int n);
// nccloop_queue makes n calls, of which the time counts, and waits for them.
nccloop_took nccloop_queue(struct nccloop *l, enum nccloop_op op, const size_t *bytes, int n);

#endif
