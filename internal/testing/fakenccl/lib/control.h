// What a test can ask of the fake NCCL and do to it. These symbols are exported beside
// NCCL's own and found with dlsym.
#ifndef FAKE_NCCL_CONTROL_H
#define FAKE_NCCL_CONTROL_H

#pragma GCC visibility push(default)

// fake_reset forgets calls, planned failures, violations, the log and communicators.
void fake_reset(void);

// fake_fail makes the k-th call from now of a symbol return code and do nothing else.
// -1: no such symbol, or k < 1.
int fake_fail(const char *symbol, int k, int code);

// fake_calls counts the calls of a symbol, or of all if the name is empty.
// -1: no such symbol.
long long fake_calls(const char *symbol);

// fake_polls makes all that communicators begin from now on that do not block stay in progress
// for n polls, and with -1 for ever. Without it, n is 0: what waits for no other member is done
// at once.
void fake_polls(int n);

// fake_kill ends a rank of every group, as if its process had ended. The others have that
// asynchronous error from then on; with 0 they have none, and what they begin is queued, or waits if
// no operation has run before. It returns how many it has ended.
int fake_kill(int rank, int code);

// fake_violations is what a correct program would not have done, and fake_log is the calls
// of communicators with their arguments, one line each. Free them.
char *fake_violations(void);
char *fake_log(void);

// fake_live counts what exists: 0 communicators, children included, 1 registrations, 2 windows,
// 3 calls that wait for other members.
int fake_live(int what);

#pragma GCC visibility pop

#endif
