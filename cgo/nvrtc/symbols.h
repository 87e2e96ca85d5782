// Every symbol of libnvrtc that this package calls: its result, our name for it, the
// exported symbol, and its parameters; and NVRTC's types. All are there from 11.2 on,
// as the CUDA driver must be. An older library is not opened.
#ifndef CUVMM_NVRTC_SYMBOLS_H
#define CUVMM_NVRTC_SYMBOLS_H

#include <stddef.h>

typedef int nvrtcResult;
typedef struct _nvrtcProgram *nvrtcProgram;

// Results, as NVIDIA numbers them. The Go side has those that decide what kind of
// error a call returns.
enum {
	NVRTC_SUCCESS = 0,
	NVRTC_ERROR_OUT_OF_MEMORY = 1,
};

#define CUVMM_NVRTC_SYMBOLS(SYMBOL) \
	SYMBOL(nvrtcResult, version, "nvrtcVersion", (int *major, int *minor)) \
	SYMBOL(nvrtcResult, arch_count, "nvrtcGetNumSupportedArchs", (int *count)) \
	SYMBOL(nvrtcResult, archs, "nvrtcGetSupportedArchs", (int *archs)) \
	SYMBOL(const char *, error_string, "nvrtcGetErrorString", (nvrtcResult result)) \
	SYMBOL(nvrtcResult, create, "nvrtcCreateProgram", (nvrtcProgram *program, const char *source, const char *name, int count, const char *const *headers, const char *const *names)) \
	SYMBOL(nvrtcResult, add_expression, "nvrtcAddNameExpression", (nvrtcProgram program, const char *expression)) \
	SYMBOL(nvrtcResult, compile, "nvrtcCompileProgram", (nvrtcProgram program, int count, const char *const *options)) \
	SYMBOL(nvrtcResult, log_size, "nvrtcGetProgramLogSize", (nvrtcProgram program, size_t *size)) \
	SYMBOL(nvrtcResult, log, "nvrtcGetProgramLog", (nvrtcProgram program, char *log)) \
	SYMBOL(nvrtcResult, ptx_size, "nvrtcGetPTXSize", (nvrtcProgram program, size_t *size)) \
	SYMBOL(nvrtcResult, ptx, "nvrtcGetPTX", (nvrtcProgram program, char *ptx)) \
	SYMBOL(nvrtcResult, cubin_size, "nvrtcGetCUBINSize", (nvrtcProgram program, size_t *size)) \
	SYMBOL(nvrtcResult, cubin, "nvrtcGetCUBIN", (nvrtcProgram program, char *cubin)) \
	SYMBOL(nvrtcResult, lowered_name, "nvrtcGetLoweredName", (nvrtcProgram program, const char *expression, const char **name)) \
	SYMBOL(nvrtcResult, destroy, "nvrtcDestroyProgram", (nvrtcProgram *program))

#endif
