// A context beside the primary one, and a reset of the primary one.
#ifndef SECOND_H
#define SECOND_H

#include "abi.h"

struct second;

// second_took is the outcome of a call: for a failure the call and its result. Result
// -1 is the loader's.
typedef struct {
	const char *call; // NULL: no failure
	int r;
} second_took;

second_took second_open(struct second **out, const char *path, int dev, int green);
second_took second_close(struct second *s);
unsigned long long second_stream(const struct second *s);

second_took second_wait(struct second *s, CUdeviceptr word, unsigned int value);
second_took second_fill(struct second *s, CUdeviceptr p, unsigned char pattern, size_t n);
second_took second_query(struct second *s);
second_took second_sync(struct second *s);

second_took second_reset_primary(const char *path, int dev);

// second_alloc_pitch allocates two rows as cuMemAllocPitch does, frees them, and returns
// their pitch.
second_took second_alloc_pitch(struct second *s, size_t width, unsigned int element, size_t *pitch);

#endif
