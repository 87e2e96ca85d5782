// Calls the fake compiler as no binding should, and checks that it notices.
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)
#define OK(call) CHECK((call) == NVRTC_SUCCESS)

static const char *const options[] = {"--gpu-architecture=sm_90"};

// said checks that this violation was found and no other, and resets.
static void said(const char *what) {
	char *text = fake_violations();
	if (strstr(text, what) == NULL || strchr(text, '\n') != text + strlen(text) - 1) {
		fprintf(stderr, "violations are\n%swhere \"%s\" was to be\n", text, what);
		exit(1);
	}
	free(text);
	fake_reset();
}

static nvrtcProgram program(void) {
	nvrtcProgram p;
	OK(rtc_create(&p, "", "", 0, NULL, NULL));
	return p;
}

static void wrong(void) {
	nvrtcProgram p = NULL;
	size_t n;
	const char *name;

	CHECK(rtc_destroy(&p) == INVALID_PROGRAM);
	said("nvrtcDestroyProgram: no such program");
	CHECK(rtc_create(&p, NULL, "", 0, NULL, NULL) == INVALID_INPUT);
	said("nvrtcCreateProgram: 0 headers, a NULL");
	CHECK(rtc_create(&p, "", "", 1, NULL, NULL) == INVALID_INPUT);
	said("nvrtcCreateProgram: 1 headers, a NULL");
	CHECK(rtc_log_size(program(), &n) == INVALID_PROGRAM);
	said("nvrtcGetProgramLogSize: before compiling");
	CHECK(rtc_lowered_name(program(), "", &name) == NO_LOWERED_BEFORE_COMPILATION);
	said("nvrtcGetLoweredName: before compiling");
	p = program();
	OK(rtc_compile(p, 1, options));
	CHECK(rtc_lowered_name(p, "f", &name) == NAME_NOT_VALID);
	CHECK(rtc_compile(p, 1, options) == INVALID_PROGRAM);
	said("nvrtcCompileProgram: compiled twice");
	p = program();
	OK(rtc_compile(p, 1, options));
	CHECK(rtc_add_expression(p, "f") == NO_NAMES_AFTER_COMPILATION);
	said("nvrtcAddNameExpression: after compiling");
	p = program();
	CHECK(rtc_compile(p, 0, NULL) == INVALID_OPTION);
	OK(rtc_log_size(p, &n));
	CHECK(rtc_ptx_size(p, &n) == INVALID_PROGRAM);
	said("nvrtcGetPTXSize: before compiling");
}

// right is a whole compilation, which leaves nothing.
static void right(void) {
	const char *names[] = {"a.cuh"}, *headers[] = {"#warning a\n"}, *name;
	nvrtcProgram p;
	size_t n;
	char buffer[512];

	OK(rtc_create(&p, "#include \"a.cuh\"\nvoid f();", "k.cu", 1, headers, names));
	OK(rtc_add_expression(p, "f"));
	CHECK(fake_live() == 1);
	OK(rtc_compile(p, 1, options));
	OK(rtc_log_size(p, &n));
	CHECK(n <= sizeof buffer);
	OK(rtc_log(p, buffer));
	CHECK(strcmp(buffer, "a.cuh(1): warning #1105-D: #warning directive: a\n") == 0);
	OK(rtc_cubin_size(p, &n));
	CHECK(n <= sizeof buffer);
	OK(rtc_cubin(p, buffer));
	OK(rtc_ptx_size(p, &n));
	CHECK(n <= sizeof buffer);
	OK(rtc_ptx(p, buffer));
	CHECK(strlen(buffer) == n - 1);
	OK(rtc_lowered_name(p, "f", &name));
	CHECK(strcmp(name, "_Z1f") == 0);
	OK(rtc_destroy(&p));
	CHECK(p == NULL && fake_live() == 0);
	char *text = fake_violations();
	CHECK(*text == 0);
	free(text);
}

int main(void) {
	wrong();
	right();
	CHECK(fake_fail("nvrtcNone", 1, 1) == -1 && fake_fail("nvrtcVersion", 0, 1) == -1);
	OK(fake_fail("nvrtcCreateProgram", 2, 11));
	nvrtcProgram p = program();
	CHECK(rtc_create(&p, "", "", 0, NULL, NULL) == 11);
	CHECK(fake_calls("nvrtcCreateProgram") == 3 && fake_calls("nvrtcNone") == -1);
	fake_reset();
	CHECK(fake_live() == 0 && fake_calls("") == 0);
	return 0;
}
