#include "second.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SYMBOLS(X) \
	X(init, "cuInit", (unsigned int flags)) \
	X(ctx_create, "cuCtxCreate_v2", (CUcontext *ctx, unsigned int flags, CUdevice dev)) \
	X(ctx_destroy, "cuCtxDestroy_v2", (CUcontext ctx)) \
	X(ctx_push, "cuCtxPushCurrent_v2", (CUcontext ctx)) \
	X(ctx_pop, "cuCtxPopCurrent_v2", (CUcontext *ctx)) \
	X(stream_create, "cuStreamCreate", (CUstream *stream, unsigned int flags)) \
	X(stream_destroy, "cuStreamDestroy_v2", (CUstream stream)) \
	X(stream_query, "cuStreamQuery", (CUstream stream)) \
	X(stream_sync, "cuStreamSynchronize", (CUstream stream)) \
	X(wait_value, "cuStreamWaitValue32_v2", (CUstream stream, CUdeviceptr p, cuuint32_t value, unsigned int flags)) \
	X(fill, "cuMemsetD8Async", (CUdeviceptr p, unsigned char pattern, size_t n, CUstream stream))

struct api {
#define FIELD(field, symbol, params) CUresult(*field) params;
	SYMBOLS(FIELD)
};

// The calls for a green context, of CUDA 12.4 and later. Descriptions of resources are
// passed on unread, in a buffer that is large enough for any version.
typedef struct {
	unsigned char opaque[512];
} resource;

#define GREEN(X) \
	X(resource_get, "cuDeviceGetDevResource", (CUdevice dev, resource *all, int type)) \
	X(resource_split, "cuDevSmResourceSplitByCount", (resource *part, unsigned int *parts, const resource *all, resource *rest, unsigned int flags, unsigned int least)) \
	X(resource_desc, "cuDevResourceGenerateDesc", (void **desc, resource *part, unsigned int parts)) \
	X(create, "cuGreenCtxCreate", (void **green, void *desc, CUdevice dev, unsigned int flags)) \
	X(destroy, "cuGreenCtxDestroy", (void *green)) \
	X(context, "cuCtxFromGreenCtx", (CUcontext *ctx, void *green)) \
	X(stream, "cuGreenCtxStreamCreate", (CUstream *stream, void *green, unsigned int flags, int priority))

struct green {
	GREEN(FIELD)
};

struct second {
	struct api api;
	void *lib;
	CUcontext ctx;
	CUstream stream;
	void *green; // NULL for a context of its own
	CUresult (*green_destroy)(void *green);
};

// INSIDE makes a call with the context current and returns its outcome from the
// function. It pops the context in any case.
#define INSIDE(s, field, ...) \
	do { \
		CUcontext old_; \
		CUresult r_ = (s)->api.ctx_push((s)->ctx); \
		if (r_ != CUDA_SUCCESS) \
			return took("ctx_push", r_); \
		r_ = (s)->api.field(__VA_ARGS__); \
		CUresult popped_ = (s)->api.ctx_pop(&old_); \
		return r_ != CUDA_SUCCESS ? took(#field, r_) : took("ctx_pop", popped_); \
	} while (0)

static second_took took(const char *call, CUresult r) {
	return r == CUDA_SUCCESS ? (second_took){0} : (second_took){call, (int)r};
}

// load opens the library and finds every symbol. The caller closes the library,
// which is NULL if it cannot be opened.
static second_took load(struct second *s, const char *path) {
	void *at;
	s->lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (s->lib == NULL)
		return (second_took){"dlopen", -1};
#define NEED(field, symbol, params) \
	at = dlsym(s->lib, symbol); \
	if (at == NULL) \
		return (second_took){symbol, -1}; \
	memcpy(&s->api.field, &at, sizeof at);
	SYMBOLS(NEED)
	return took("init", s->api.init(0));
}

static void unload(struct second *s) {
	if (s->lib != NULL)
		dlclose(s->lib);
	free(s);
}

// make makes the context, which is then current, its stream, and pops it.
static second_took make(struct second *s, int dev) {
	CUcontext old;
	CUresult r = s->api.ctx_create(&s->ctx, 0, dev);
	if (r != CUDA_SUCCESS)
		return took("ctx_create", r);
	second_took t = took("stream_create", s->api.stream_create(&s->stream, CU_STREAM_NON_BLOCKING));
	r = s->api.ctx_pop(&old);
	if (t.call == NULL)
		t = took("ctx_pop", r);
	if (t.call != NULL)
		s->api.ctx_destroy(s->ctx);
	return t;
}

// make_green makes a green context on some of the device's multiprocessors, and its
// stream.
static second_took make_green(struct second *s, int dev) {
	enum { SM = 1, DEFAULT_STREAM = 1, LEAST = 8 };
	struct green g;
	resource all = {{0}}, part = {{0}};
	unsigned int parts = 1;
	void *desc, *at;
#define NEED_GREEN(field, symbol, params) \
	at = dlsym(s->lib, symbol); \
	if (at == NULL) \
		return (second_took){symbol, -1}; \
	memcpy(&g.field, &at, sizeof at);
	GREEN(NEED_GREEN)
	s->green_destroy = g.destroy;
	CUresult r = g.resource_get(dev, &all, SM);
	if (r == CUDA_SUCCESS)
		r = g.resource_split(&part, &parts, &all, NULL, 0, LEAST);
	if (r == CUDA_SUCCESS)
		r = g.resource_desc(&desc, &part, 1);
	if (r == CUDA_SUCCESS)
		r = g.create(&s->green, desc, dev, DEFAULT_STREAM);
	if (r != CUDA_SUCCESS)
		return took("cuGreenCtxCreate", r);
	r = g.context(&s->ctx, s->green);
	if (r == CUDA_SUCCESS)
		r = g.stream(&s->stream, s->green, CU_STREAM_NON_BLOCKING, 0);
	if (r != CUDA_SUCCESS)
		g.destroy(s->green);
	return took("cuGreenCtxStreamCreate", r);
}

second_took second_open(struct second **out, const char *path, int dev, int green) {
	struct second *s = calloc(1, sizeof *s);
	if (s == NULL)
		return (second_took){"calloc", -1};
	second_took t = load(s, path);
	if (t.call == NULL)
		t = green ? make_green(s, dev) : make(s, dev);
	if (t.call != NULL) {
		unload(s);
		return t;
	}
	*out = s;
	return t;
}

static second_took free_stream(struct second *s) { INSIDE(s, stream_destroy, s->stream); }

second_took second_close(struct second *s) {
	second_took t = free_stream(s);
	CUresult r = s->green ? s->green_destroy(s->green) : s->api.ctx_destroy(s->ctx);
	if (t.call == NULL)
		t = took("ctx_destroy", r);
	unload(s);
	return t;
}

unsigned long long second_stream(const struct second *s) { return (uintptr_t)s->stream; }

second_took second_wait(struct second *s, CUdeviceptr word, unsigned int value) {
	INSIDE(s, wait_value, s->stream, word, value, CU_STREAM_WAIT_VALUE_GEQ);
}

second_took second_fill(struct second *s, CUdeviceptr p, unsigned char pattern, size_t n) {
	INSIDE(s, fill, p, pattern, n, s->stream);
}

second_took second_query(struct second *s) { INSIDE(s, stream_query, s->stream); }

second_took second_sync(struct second *s) { INSIDE(s, stream_sync, s->stream); }

second_took second_reset_primary(const char *path, int dev) {
	static const char symbol[] = "cuDevicePrimaryCtxReset_v2";
	CUresult (*reset)(CUdevice);
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (lib == NULL)
		return (second_took){"dlopen", -1};
	void *at = dlsym(lib, symbol);
	second_took t = {symbol, -1};
	if (at != NULL) {
		memcpy(&reset, &at, sizeof at);
		t = took(symbol, reset(dev));
	}
	dlclose(lib);
	return t;
}

second_took second_alloc_pitch(struct second *s, size_t width, unsigned int element, size_t *pitch) {
	CUresult (*alloc)(CUdeviceptr *p, size_t *pitch, size_t width, size_t height, unsigned int element);
	CUresult (*release)(CUdeviceptr p);
	CUcontext old;
	CUdeviceptr p;
	void *found = dlsym(s->lib, "cuMemAllocPitch_v2"), *also = dlsym(s->lib, "cuMemFree_v2");
	if (found == NULL || also == NULL)
		return (second_took){"cuMemAllocPitch_v2", -1};
	memcpy(&alloc, &found, sizeof found);
	memcpy(&release, &also, sizeof also);
	second_took t = took("ctx_push", s->api.ctx_push(s->ctx));
	if (t.call != NULL)
		return t;
	t = took("cuMemAllocPitch_v2", alloc(&p, pitch, width, 2, element));
	if (t.call == NULL)
		t = took("cuMemFree_v2", release(p));
	CUresult popped = s->api.ctx_pop(&old);
	return t.call == NULL ? took("ctx_pop", popped) : t;
}
