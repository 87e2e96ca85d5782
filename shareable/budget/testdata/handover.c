// handover hands memory over between two processes by the driver's calls alone, and prints how long each hand-over
// took, in nanoseconds: from the taker's request to its last cuMemSetAccess.
//
//	handover ROUNDS BASE_A BASE_B BYTES CHUNK
//
// Two processes have BASE bytes each. In each round B asks A for BYTES, and then A asks B. A runs fills on its first
// GiB meanwhile.
#include <cuda.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OK(x) do { CUresult r_ = (x); if (r_ != CUDA_SUCCESS) { fprintf(stderr, "%s: %d\n", #x, r_); kill(getppid(), SIGTERM); exit(1); } } while (0)

static CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
static CUmemAccessDesc rw = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
static CUmemGenericAllocationHandle handles[1 << 17];
static CUdeviceptr at;
static CUcontext context;

static uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void grow(uint64_t from, uint64_t to, uint64_t chunk) {
	for (uint64_t o = from; o < to; o += chunk) {
		OK(cuMemCreate(&handles[o / chunk], chunk, &prop, 0));
		OK(cuMemMap(at + o, chunk, 0, handles[o / chunk], 0));
	}
	OK(cuMemSetAccess(at + from, to - from, &rw, 1));
}

static void shrink(uint64_t from, uint64_t to, uint64_t chunk) {
	OK(cuMemUnmap(at + to, from - to));
	for (uint64_t o = to; o < from; o += chunk)
		OK(cuMemRelease(handles[o / chunk]));
}

static void *fills(void *arg) {
	uint64_t bytes = *(uint64_t *)arg;
	CUstream s;
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	for (unsigned i = 0;; i++) {
		OK(cuMemsetD32Async(at, i, bytes / 4, s));
		OK(cuStreamSynchronize(s));
	}
	return NULL;
}

// Each process reads a byte: 't' it takes, 'g' it gives, 'e' it ends; the other side of peer is the other process.
static void process(int command, int peer, uint64_t base, uint64_t bytes, uint64_t chunk, int works) {
	CUdevice d;
	OK(cuInit(0));
	OK(cuDeviceGet(&d, 0));
	OK(cuDevicePrimaryCtxRetain(&context, d));
	OK(cuCtxSetCurrent(context));
	OK(cuMemAddressReserve(&at, 1ull << 38, 0, 0, 0));
	grow(0, base, chunk);
	OK(cuMemsetD8(at, 1, base));
	OK(cuStreamSynchronize(NULL));
	pthread_t t;
	static uint64_t first;
	first = base < (1ull << 30) ? base : 1ull << 30;
	if (works)
		pthread_create(&t, NULL, fills, &first);
	uint64_t have = base;
	char c = 'r';
	if (write(command, &c, 1) != 1)
		exit(1);
	while (read(command, &c, 1) == 1 && c != 'e') {
		uint64_t took = 0;
		if (c == 'i') { // the first memory, which no one had
			grow(have, have + bytes, chunk);
			have += bytes;
		} else if (c == 't') {
			uint64_t begin = now();
			if (write(peer, &c, 1) != 1 || read(peer, &c, 1) != 1)
				exit(1);
			grow(have, have + bytes, chunk);
			took = now() - begin;
			have += bytes;
		} else {
			if (read(peer, &c, 1) != 1)
				exit(1);
			shrink(have, have - bytes, chunk);
			have -= bytes;
			if (write(peer, &c, 1) != 1)
				exit(1);
			continue;
		}
		OK(cuMemsetD8(at + have - bytes, 2, bytes)); // as a program that uses it
		OK(cuStreamSynchronize(NULL));
		if (write(command, &took, sizeof took) != sizeof took)
			exit(1);
	}
	_exit(0);
}

int main(int argc, char **argv) {
	if (argc != 6)
		return 2;
	uint64_t rounds = strtoull(argv[1], 0, 0), base[2] = {strtoull(argv[2], 0, 0), strtoull(argv[3], 0, 0)};
	uint64_t bytes = strtoull(argv[4], 0, 0), chunk = strtoull(argv[5], 0, 0), took;
	int command[2][2], peer[2];
	socketpair(AF_UNIX, SOCK_STREAM, 0, peer);
	for (int i = 0; i < 2; i++) {
		socketpair(AF_UNIX, SOCK_STREAM, 0, command[i]);
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			close(command[i][0]); // so that it ends with this process
			process(command[i][1], peer[i], base[i], bytes, chunk, i == 0);
		}
		close(command[i][1]);
		char c;
		if (read(command[i][0], &c, 1) != 1)
			return 1;
	}
	if (write(command[0][0], "i", 1) != 1 || read(command[0][0], &took, sizeof took) != sizeof took)
		return 1;
	for (uint64_t r = 0; r < rounds; r++) {
		int taker = r % 2 == 0;
		if (write(command[!taker][0], "g", 1) != 1 || write(command[taker][0], "t", 1) != 1)
			return 1;
		if (read(command[taker][0], &took, sizeof took) != sizeof took)
			return 1;
		printf("%llu\n", (unsigned long long)took);
	}
	for (int i = 0; i < 2; i++)
		if (write(command[i][0], "e", 1) != 1)
			return 1;
	while (wait(NULL) > 0)
		;
	return 0;
}
