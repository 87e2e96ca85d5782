// What Go calls. A shim keeps no pointer that it was passed, and none calls back into Go.
#ifndef CUVMM_NVRTC_SHIMS_H
#define CUVMM_NVRTC_SHIMS_H

#include "../internal/dl/dl.h"
#include "symbols.h"

struct cuvmm_nvrtc_api {
#define FIELD(result, field, symbol, params) result(*field) params;
	CUVMM_NVRTC_SYMBOLS(FIELD)
#undef FIELD
};

extern const struct cuvmm_symbol cuvmm_nvrtc_symbols[];

const char *cuvmm_nvrtc_text(const struct cuvmm_nvrtc_api *api, nvrtcResult r);
nvrtcResult cuvmm_nvrtc_version(const struct cuvmm_nvrtc_api *api, int *major, int *minor);
nvrtcResult cuvmm_nvrtc_arch_count(const struct cuvmm_nvrtc_api *api, int *count);
nvrtcResult cuvmm_nvrtc_archs(const struct cuvmm_nvrtc_api *api, int *archs);

// cuvmm_nvrtc_input is what is compiled. All of it is C's memory and the caller's.
struct cuvmm_nvrtc_input {
	const char *source, *name;
	int header_count;
	const char *const *header_texts, *const *header_names;
	int option_count;
	const char *const *options;
	int expression_count;
	const char *const *expressions;
	int cubin; // the cubin is wanted, not the PTX
};

// cuvmm_nvrtc_bytes is memory from malloc, NULL if there is none.
struct cuvmm_nvrtc_bytes {
	char *at;
	size_t size;
};

// cuvmm_nvrtc_output is what was compiled, or which call failed. The log is there
// as well where compiling failed.
struct cuvmm_nvrtc_output {
	nvrtcResult r;
	const char *call;   // that failed, NULL if none did
	int expression;     // the expression that it was made with, -1 if none
	struct cuvmm_nvrtc_bytes log, image;
	char **names; // of the expressions, in their order
};

// cuvmm_nvrtc_compile compiles. The caller frees the output, also after a failure.
void cuvmm_nvrtc_compile(const struct cuvmm_nvrtc_api *api, const struct cuvmm_nvrtc_input *in, struct cuvmm_nvrtc_output *out);
void cuvmm_nvrtc_free(const struct cuvmm_nvrtc_input *in, struct cuvmm_nvrtc_output *out);

#endif
