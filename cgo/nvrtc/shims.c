// The symbols of libnvrtc, and one whole compilation.
#include "shims.h"

#include <stdlib.h>
#include <string.h>

const struct cuvmm_symbol cuvmm_nvrtc_symbols[] = {
#define ENTRY(result, field, symbol, params) {symbol, offsetof(struct cuvmm_nvrtc_api, field), 1},
	CUVMM_NVRTC_SYMBOLS(ENTRY)
	{0},
};

const char *cuvmm_nvrtc_text(const struct cuvmm_nvrtc_api *api, nvrtcResult r) { return api->error_string(r); }

nvrtcResult cuvmm_nvrtc_version(const struct cuvmm_nvrtc_api *api, int *major, int *minor) {
	return api->version(major, minor);
}

nvrtcResult cuvmm_nvrtc_arch_count(const struct cuvmm_nvrtc_api *api, int *count) { return api->arch_count(count); }
nvrtcResult cuvmm_nvrtc_archs(const struct cuvmm_nvrtc_api *api, int *archs) { return api->archs(archs); }

// failed records the first call that failed. It returns whether this one did.
static int failed(struct cuvmm_nvrtc_output *out, const char *call, nvrtcResult r) {
	if (r != NVRTC_SUCCESS && out->call == NULL) {
		out->r = r;
		out->call = call;
	}
	return r != NVRTC_SUCCESS;
}

// fetch asks for a size and then for so many bytes.
static void fetch(struct cuvmm_nvrtc_output *out, nvrtcProgram program, struct cuvmm_nvrtc_bytes *to,
		const char *size_call, nvrtcResult (*size)(nvrtcProgram, size_t *),
		const char *call, nvrtcResult (*get)(nvrtcProgram, char *)) {
	size_t n = 0;
	if (failed(out, size_call, size(program, &n)))
		return;
	char *at = malloc(n + 1); // never of nothing
	if (at == NULL) {
		failed(out, "malloc", NVRTC_ERROR_OUT_OF_MEMORY);
		return;
	}
	if (n > 0 && failed(out, call, get(program, at))) {
		free(at);
		return;
	}
	to->at = at;
	to->size = n;
}

// lower copies the lowered names, which the program owns.
static void lower(const struct cuvmm_nvrtc_api *api, const struct cuvmm_nvrtc_input *in,
		struct cuvmm_nvrtc_output *out, nvrtcProgram program) {
	out->names = calloc((size_t)in->expression_count + 1, sizeof *out->names);
	if (out->names == NULL) {
		failed(out, "malloc", NVRTC_ERROR_OUT_OF_MEMORY);
		return;
	}
	for (int i = 0; i < in->expression_count; i++) {
		const char *name = NULL;
		out->expression = i;
		if (failed(out, "nvrtcGetLoweredName", api->lowered_name(program, in->expressions[i], &name)))
			return;
		if ((out->names[i] = strdup(name)) == NULL) {
			failed(out, "malloc", NVRTC_ERROR_OUT_OF_MEMORY);
			return;
		}
	}
	out->expression = -1;
}

// make does everything between the program's creation and its end.
static void make(const struct cuvmm_nvrtc_api *api, const struct cuvmm_nvrtc_input *in,
		struct cuvmm_nvrtc_output *out, nvrtcProgram program) {
	for (int i = 0; i < in->expression_count; i++) {
		out->expression = i;
		if (failed(out, "nvrtcAddNameExpression", api->add_expression(program, in->expressions[i])))
			return;
	}
	out->expression = -1;
	failed(out, "nvrtcCompileProgram", api->compile(program, in->option_count, in->options));
	// The log says why compiling failed. If it cannot be had, the first failure stays.
	fetch(out, program, &out->log, "nvrtcGetProgramLogSize", api->log_size, "nvrtcGetProgramLog", api->log);
	if (out->call != NULL)
		return;
	lower(api, in, out, program);
	if (out->call != NULL)
		return;
	if (in->cubin)
		fetch(out, program, &out->image, "nvrtcGetCUBINSize", api->cubin_size, "nvrtcGetCUBIN", api->cubin);
	else
		fetch(out, program, &out->image, "nvrtcGetPTXSize", api->ptx_size, "nvrtcGetPTX", api->ptx);
}

void cuvmm_nvrtc_compile(const struct cuvmm_nvrtc_api *api, const struct cuvmm_nvrtc_input *in,
		struct cuvmm_nvrtc_output *out) {
	nvrtcProgram program = NULL;
	*out = (struct cuvmm_nvrtc_output){.expression = -1};
	if (failed(out, "nvrtcCreateProgram", api->create(&program, in->source, in->name, in->header_count, in->header_texts, in->header_names)))
		return;
	make(api, in, out, program);
	failed(out, "nvrtcDestroyProgram", api->destroy(&program));
}

void cuvmm_nvrtc_free(const struct cuvmm_nvrtc_input *in, struct cuvmm_nvrtc_output *out) {
	free(out->log.at);
	free(out->image.at);
	for (int i = 0; out->names != NULL && i < in->expression_count; i++)
		free(out->names[i]);
	free(out->names);
}
