// What a test can ask of the fake driver and do to it. These symbols are exported
// beside the driver's own and found with dlsym.
#ifndef FAKE_CONTROL_H
#define FAKE_CONTROL_H

#pragma GCC visibility push(default)

// fake_count counts what exists. Streams, events, graphs, modules, pools and plain or pinned
// memory that outlive their context are still counted, because they were never freed.
struct fake_count {
	long long handles, reservations, mappings;
	long long contexts; // references to primary contexts
	long long peers;    // contexts whose plain memory another context may access
	long long streams, events;
	long long graphs, execs, modules;
	long long plain, pinned; // pieces of memory
	long long pools;         // but the devices' default ones
	long long pushed;        // contexts on the stacks of all threads
};

// fake_reset clears everything except that cuInit was called. It also pops the
// contexts of every thread.
void fake_reset(void);

// fake_configure resets, and sets how many devices there are and their memory size.
void fake_configure(int devices, unsigned long long bytes);

// fake_fail makes the k-th call from now of a symbol, or of any symbol if the
// name is empty, return code and do nothing else. -1: no such symbol, or k < 1.
int fake_fail(const char *symbol, int k, int code);

// fake_calls counts the calls of a symbol, or of all if the name is empty.
// -1: no such symbol.
long long fake_calls(const char *symbol);

// fake_last is the symbol's last call as text: "cuMemUnmap p=0x1000 size=4096", a call
// without arguments as its name and a space.
// Free it. NULL: no such symbol, or no call yet.
char *fake_last(const char *symbol);

// fake_violations is what a correct program would not have done, one line each.
// Free it.
char *fake_violations(void);

void fake_live(struct fake_count *out);

// fake_lose makes each call that needs a context, of any device, return an illegal
// address: one lost device is a lost process. Memory can still be freed.
void fake_lose(void);

// fake_pause holds calls of a symbol back until it is called again, with an empty
// name for none. -1: no such symbol. fake_paused counts the calls held back.
int fake_pause(const char *symbol);
int fake_paused(void);

// fake_link sets the link between two devices, in one direction. It is NVLink until
// set otherwise.
enum { FAKE_NVLINK, FAKE_PCIE, FAKE_NO_PATH };
void fake_link(int from, int to, int kind);

// fake_foreign is another process. It returns a descriptor of its pool, or -1. The 64
// bytes each are the handles of its memory and of its event, and the token of memory of
// its pool: n bytes on a device.
int fake_foreign(int device, unsigned long long n, unsigned char *memory, unsigned char *event, unsigned char *token);

// fake_end ends all other processes. Their events can be opened still.
void fake_end(void);

#pragma GCC visibility pop

#endif
