// A libcuda in front of the real one that makes some calls fail at random: such a
// call is not made and returns an error. So a program can be tested on a driver that
// fails.
//
//     cc -shared -fPIC -I cgo/cuda -o DIR/libcuda.so.1 tools/failcuda/failcuda.c
//     LD_LIBRARY_PATH=DIR FAILCUDA_RATE=100 program
//
// From the environment, when the library is loaded:
//
//     FAILCUDA_REAL     the real library; if not set, it is looked for where drivers are
//     FAILCUDA_RATE     how many of 10,000 calls fail; 0 if not set
//     FAILCUDA_SEED     where the random numbers begin; 1 if not set
//     FAILCUDA_KINDS    the calls that may fail, as in "cuMemCreate,cuMemMap"
//     FAILCUDA_CONTROL  a file that is made if it is not there, to change the
//                       rate while the program runs; see struct control
//
// All symbols of cgo/cuda/symbols.h are here. cuGetProcAddress and cuGetExportTable
// are passed on. So a program that gets its functions from them, as CUDA's runtime
// does, works and sees no failures. Every other wrapper of a driver says what it wraps
// by driver.Wrapper; here it is the file that FAILCUDA_REAL names.
#define _GNU_SOURCE
#include "abi.h"
#include "symbols.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// The control file, in the machine's byte order. Any process may write rate; 0 makes
// every call work. The rest is for reading.
struct control {
	_Atomic uint32_t rate; // of 10,000
	uint32_t zero;
	_Atomic uint64_t calls;  // of the kinds that may fail
	_Atomic uint64_t failed; // of those
};

// What may fail unless FAILCUDA_KINDS says otherwise. Left out are calls after whose
// failure no program could go on (the contexts' stack, the capture mode), the release
// of a context, and cuStreamSynchronize, after which the binding's copies of pageable
// memory would still be under way.
static const char usual[] =
	"cuDeviceCanAccessPeer,cuCtxSynchronize,cuMemAddressReserve,cuMemAddressFree,cuMemCreate,cuMemRelease,cuMemMap,"
	"cuMemUnmap,cuMemSetAccess,cuPointerGetAttribute,cuMemcpyHtoDAsync_v2,cuMemcpyDtoHAsync_v2,cuMemcpyAsync,cuMemcpy2DAsync_v2,"
	"cuMemsetD8Async,cuMemsetD32Async,cuStreamCreate,cuStreamDestroy_v2,cuStreamIsCapturing,cuStreamWaitEvent,"
	"cuEventCreate,cuEventDestroy_v2,cuEventRecord,cuEventSynchronize,cuEventQuery,cuMemHostAlloc,cuMemFreeHost";

// What is passed on and never fails.
#define PASSED(PASS) \
	PASS(proc_address, "cuGetProcAddress") \
	PASS(proc_address_status, "cuGetProcAddress_v2") \
	PASS(export_table, "cuGetExportTable")

#define INDEX(field, symbol, params) SYM_##field,
#define INDEX_PASSED(field, symbol) SYM_##field,
enum {
	CUVMM_SYMBOLS(INDEX, INDEX)
	PASSED(INDEX_PASSED)
	SYM_COUNT
};

#define NAME(field, symbol, params) symbol,
#define NAME_PASSED(field, symbol) symbol,
static const char *const names[] = {CUVMM_SYMBOLS(NAME, NAME) PASSED(NAME_PASSED)};

// Every argument of every symbol is an integer or a pointer, and there are six
// at most. On x86-64 and on arm64 each is one register, so all of them can be
// passed on without knowing which.
typedef uintptr_t word;
typedef CUresult (*function)(word, word, word, word, word, word);

static function real[SYM_COUNT];
static bool may_fail[SYM_COUNT];
static uint64_t seed = 1;
static struct control own, *control = &own;

// more is the next random number of all threads together.
static uint64_t more(void) {
	static _Atomic uint64_t drawn;
	uint64_t x = seed + (atomic_fetch_add(&drawn, 1) + 1) * 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

// code is what a failing call returns. It is no result that means that the context is
// lost.
static CUresult code(int symbol, bool scarce) {
	switch (symbol) {
	case SYM_mem_reserve:
	case SYM_mem_create:
	case SYM_host_alloc:
	case SYM_plain_alloc:
		if (scarce)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_ERROR_OPERATING_SYSTEM;
}

static CUresult pass(int symbol, word a, word b, word c, word d, word e, word f) {
	if (real[symbol] == NULL)
		return real[SYM_init] == NULL ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_NOT_SUPPORTED;
	if (may_fail[symbol]) {
		uint64_t x = more();
		atomic_fetch_add(&control->calls, 1);
		if (x % 10000 < atomic_load(&control->rate)) {
			atomic_fetch_add(&control->failed, 1);
			return code(symbol, x >> 63);
		}
	}
	return real[symbol](a, b, c, d, e, f);
}

#define PASS(field, symbol) \
	__attribute__((visibility("default"))) CUresult pass_##field(word, word, word, word, word, word) __asm__(symbol); \
	CUresult pass_##field(word a, word b, word c, word d, word e, word f) { \
		return pass(SYM_##field, a, b, c, d, e, f); \
	}
#define PASS_LISTED(field, symbol, params) PASS(field, symbol)
CUVMM_SYMBOLS(PASS_LISTED, PASS_LISTED)
PASSED(PASS)

static const char *text_of(const char *name, const char *otherwise) {
	const char *text = getenv(name);
	return text != NULL && *text != '\0' ? text : otherwise;
}

// choose marks the calls that may fail.
static void choose(const char *kinds) {
	while (*kinds != '\0') {
		size_t n = strcspn(kinds, ",");
		int i = 0;
		while (i < SYM_COUNT && (strlen(names[i]) != n || memcmp(names[i], kinds, n) != 0))
			i++;
		if (i < SYM_proc_address)
			may_fail[i] = true;
		else if (n > 0)
			fprintf(stderr, "failcuda: no call %.*s\n", (int)n, kinds);
		kinds += n + (kinds[n] == ',');
	}
}

// share moves control into the file, with the rate that the file has already.
static void share(const char *path) {
	struct stat file;
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || fstat(fd, &file) != 0) {
		perror(path);
		goto done;
	}
	bool fresh = file.st_size < (off_t)sizeof *control;
	if (fresh && ftruncate(fd, sizeof *control) != 0) {
		perror(path);
		goto done;
	}
	struct control *shared = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (shared == MAP_FAILED) {
		perror(path);
		goto done;
	}
	if (fresh)
		atomic_store(&shared->rate, atomic_load(&own.rate));
	control = shared;
done:
	if (fd >= 0)
		close(fd);
}

// find opens the real library. Its name alone would find this one.
static void *find(void) {
	static const char *const folders[] = {
		"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib",
		"/usr/local/nvidia/lib64", "/usr/local/cuda/compat",
	};
	// Deep, because in a program that is linked with this library the real one's calls of
	// itself would come here.
	const int how = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
	const char *path = text_of("FAILCUDA_REAL", NULL);
	if (path != NULL)
		return dlopen(path, how);
	for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
		char full[200];
		snprintf(full, sizeof full, "%s/libcuda.so.1", folders[i]);
		void *library = dlopen(full, how);
		if (library != NULL)
			return library;
	}
	return NULL;
}

__attribute__((constructor)) static void load(void) {
	seed = strtoull(text_of("FAILCUDA_SEED", "1"), NULL, 0);
	atomic_store(&own.rate, (uint32_t)strtoul(text_of("FAILCUDA_RATE", "0"), NULL, 0));
	choose(text_of("FAILCUDA_KINDS", usual));
	const char *path = text_of("FAILCUDA_CONTROL", NULL);
	if (path != NULL)
		share(path);
	void *library = find();
	if (library == NULL) {
		const char *why = dlerror();
		fprintf(stderr, "failcuda: the real libcuda cannot be loaded: %s\n", why == NULL ? "set FAILCUDA_REAL" : why);
		return;
	}
	for (int i = 0; i < SYM_COUNT; i++) {
		void *p = dlsym(library, names[i]);
		memcpy(&real[i], &p, sizeof p);
	}
}
