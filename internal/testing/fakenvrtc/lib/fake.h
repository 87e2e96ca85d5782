// What the parts of the fake compiler share.
#ifndef FAKE_NVRTC_H
#define FAKE_NVRTC_H

#define _GNU_SOURCE

#include "control.h"
#include "symbols.h"

#include <stdbool.h>
#include <stdint.h>

// What a test sets otherwise in its copy of the library, before it loads that.
#pragma GCC visibility push(protected)
extern volatile int fake_major, fake_minor;
#pragma GCC visibility pop

enum {
	INVALID_INPUT = 3,
	INVALID_PROGRAM = 4,
	INVALID_OPTION = 5,
	COMPILATION = 6,
	NO_NAMES_AFTER_COMPILATION = 8,
	NO_LOWERED_BEFORE_COMPILATION = 9,
	NAME_NOT_VALID = 10,
};

enum {
#define INDEX(result, field, symbol, params) SYM_##field,
	CUVMM_NVRTC_SYMBOLS(INDEX)
#undef INDEX
	SYM_COUNT
};

// NVRTC's functions. The compiler holds each to its entry in symbols.h, and the label
// gives it the exported name that stands there.
#pragma GCC visibility push(default)
#define DECLARE(result, field, symbol, params) result rtc_##field params __asm__(symbol);
CUVMM_NVRTC_SYMBOLS(DECLARE)
#undef DECLARE
#pragma GCC visibility pop

struct text {
	char *at;
	size_t size; // without the zero byte at the end
};

struct _nvrtcProgram {
	struct _nvrtcProgram *next;
	char *source, *name;
	int header_count, expression_count;
	char **headers, **header_names, **expressions, **lowered;
	bool tried, compiled;
	struct text log, ptx, cubin;
};

// A call begins with ENTER: it holds the lock until the function returns, counts the
// call, and returns the code of a planned failure.
struct call {
	bool refused;
	nvrtcResult code;
};

struct call enter(int symbol);
void leave(struct call *c);

#define ENTER(field) \
	__attribute__((cleanup(leave))) struct call call = enter(SYM_##field); \
	if (call.refused) \
		return call.code

// violate records what a correct program would not have done.
__attribute__((format(printf, 1, 2))) void violate(const char *format, ...);

// add appends to a text.
__attribute__((format(printf, 2, 3))) void add(struct text *t, const char *format, ...);
void add_bytes(struct text *t, const void *bytes, size_t n);

extern nvrtcProgram programs; // all that exist
void end_program(nvrtcProgram p);

#endif
