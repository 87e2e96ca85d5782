// Modules, their functions, and launches.
//
// An image is text: it begins with "//" or ".version", and ends with a zero. One that
// begins as a cubin or a fatbin has its text behind the header. A function NAME is
// there if the text has ".entry NAME(". These lines say more:
//
//	// params NAME 8 8 4   the sizes of its parameters
//	// says TEXT           what the compiler logs
//	// fails 218 TEXT      the result of the load, and what the compiler logs of it
//
// The function fill_bytes(p, n, value) sets bytes. Others do nothing.
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARAMS = 16, MAX_THREADS = 1024, SHARED = 48 << 10, MAX_SHARED = 227 << 10 };

struct CUfunc_st {
	struct CUfunc_st *next;
	struct CUmod_st *module;
	char name[64];
	size_t params, offsets[MAX_PARAMS], sizes[MAX_PARAMS];
	int shared; // the most dynamic shared memory
};

struct CUmod_st {
	struct CUmod_st *next;
	struct device *device;
	unsigned int epoch;
	bool gone; // its context was reset
	struct CUfunc_st *functions;
	char *text;
};

// text_of is the text of an image, or NULL.
static const char *text_of(const char *image) {
	if (memcmp(image, "\x7f" "ELF", 4) == 0)
		return image + 64;
	if (memcmp(image, "\x50\xed\x55\xba", 4) == 0)
		return image + 16;
	return strncmp(image, "//", 2) == 0 || strncmp(image, ".version", 8) == 0 ? image : NULL;
}

// said writes what follows what in its line to a log of size bytes.
static void said(const char *text, const char *what, char *log, size_t size) {
	const char *at = strstr(text, what);
	if (at == NULL || size == 0)
		return;
	at += strlen(what);
	snprintf(log, size, "%.*s", (int)strcspn(at, "\n"), at);
}

CUresult cu_module_load(CUmodule *module, const void *image, unsigned int count, CUjit_option *options, void **values) {
	void *of[16] = {0};
	for (unsigned int i = 0; i < count; i++)
		of[options[i] & 15] = values[i];
	ENTER(module_load, "registers=%zu lines=%zu logs=%zu,%zu", (size_t)of[CU_JIT_MAX_REGISTERS], (size_t)of[CU_JIT_GENERATE_LINE_INFO],
	      (size_t)of[CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES], (size_t)of[CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]);
	struct device *dev;
	char failure[256] = "";
	int code = 0, skip = 0;
	TRY(context(&dev));
	TRY(unsafe_in_capture());
	const char *text = text_of(image);
	if (text == NULL)
		return CUDA_ERROR_INVALID_IMAGE;
	said(text, "// says ", of[CU_JIT_INFO_LOG_BUFFER], (size_t)of[CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES]);
	said(text, "// fails ", failure, sizeof failure);
	if (sscanf(failure, "%d %n", &code, &skip) == 1) {
		snprintf(of[CU_JIT_ERROR_LOG_BUFFER], (size_t)of[CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES], "%s\n", failure + skip);
		return (CUresult)code;
	}
	struct CUmod_st *m = malloc(sizeof *m);
	char *copy = strdup(text);
	if (m == NULL || copy == NULL) {
		free(m);
		free(copy);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*m = (struct CUmod_st){.next = fake.modules, .device = dev, .epoch = dev->epoch, .text = copy};
	fake.modules = m;
	*module = m;
	return CUDA_SUCCESS;
}

// of_context checks that a module is of the current context.
static CUresult of_context(struct device *dev, const struct CUmod_st *m) {
	if (m->device == dev && m->epoch == dev->epoch)
		return CUDA_SUCCESS;
	violate("module %p is of another context", (const void *)m);
	return CUDA_ERROR_INVALID_HANDLE;
}

static CUresult known_module(CUmodule module, struct CUmod_st ***at) {
	*at = &fake.modules;
	while (**at != NULL && **at != module)
		*at = &(**at)->next;
	if (**at == NULL) {
		violate("module %p does not exist", (void *)module);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	return CUDA_SUCCESS;
}

static void free_module(struct CUmod_st *m) {
	for (struct CUfunc_st *f = m->functions; f != NULL;) {
		struct CUfunc_st *next = f->next;
		free(f);
		f = next;
	}
	free(m->text);
	free(m);
}

CUresult cu_module_unload(CUmodule module) {
	ENTER(module_unload, "module=%p", (void *)module);
	struct device *dev;
	struct CUmod_st **at;
	CUresult lost = context(&dev);
	if (lost != CUDA_SUCCESS && lost != CUDA_ERROR_ILLEGAL_ADDRESS)
		return lost;
	TRY(known_module(module, &at));
	TRY(of_context(dev, module));
	TRY(unsafe_in_capture());
	*at = module->next;
	free_module(module);
	return lost;
}

// params reads the sizes of a function's parameters. Each begins at a multiple of the
// power of two in its size.
static void params(struct CUfunc_st *f, const char *text) {
	char start[96];
	snprintf(start, sizeof start, "// params %s ", f->name);
	const char *at = strstr(text, start);
	size_t end = 0;
	if (at == NULL)
		return;
	at += strlen(start);
	for (int n; f->params < MAX_PARAMS && sscanf(at, "%zu%n", &f->sizes[f->params], &n) == 1; f->params++) {
		size_t size = f->sizes[f->params], align = size & -size;
		f->offsets[f->params] = (end + align - 1) & -align;
		end = f->offsets[f->params] + size;
		at += n;
		if (*at != ' ')
			at = "";
	}
}

CUresult cu_module_function(CUfunction *f, CUmodule module, const char *name) {
	ENTER(module_function, "module=%p name=%s", (void *)module, name);
	struct device *dev;
	struct CUmod_st **at;
	TRY(context(&dev));
	TRY(known_module(module, &at));
	TRY(of_context(dev, module));
	for (*f = module->functions; *f != NULL; *f = (*f)->next)
		if (strcmp((*f)->name, name) == 0)
			return CUDA_SUCCESS;
	char entry[96];
	if (strlen(name) >= sizeof (*f)->name)
		return CUDA_ERROR_NOT_FOUND;
	snprintf(entry, sizeof entry, ".entry %s(", name);
	if (strstr(module->text, entry) == NULL)
		return CUDA_ERROR_NOT_FOUND;
	struct CUfunc_st *new = malloc(sizeof *new);
	if (new == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*new = (struct CUfunc_st){.next = module->functions, .module = module, .shared = SHARED};
	strcpy(new->name, name);
	params(new, module->text);
	module->functions = new;
	*f = new;
	return CUDA_SUCCESS;
}

// known_function checks that a function is there and of the current context.
static CUresult known_function(struct device *dev, CUfunction wanted) {
	for (struct CUmod_st *m = fake.modules; m != NULL; m = m->next)
		for (struct CUfunc_st *f = m->functions; f != NULL; f = f->next)
			if (f == wanted)
				return of_context(dev, m);
	violate("function %p does not exist", (void *)wanted);
	return CUDA_ERROR_INVALID_HANDLE;
}

CUresult cu_function_get(int *value, CUfunction_attribute attribute, CUfunction f) {
	ENTER(function_get, "attribute=%d f=%p", attribute, (void *)f);
	struct device *dev;
	TRY(context(&dev));
	TRY(known_function(dev, f));
	switch ((int)attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*value = MAX_THREADS;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_NUM_REGS:
		*value = 16;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
		*value = 1;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
		*value = 2;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
		*value = 3;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		*value = f->shared;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
		*value = 75;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		*value = 90;
		return CUDA_SUCCESS;
	}
	violate("attribute %d is not known here", attribute);
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cu_function_set(CUfunction f, CUfunction_attribute attribute, int value) {
	ENTER(function_set, "f=%p attribute=%d value=%d", (void *)f, attribute, value);
	struct device *dev;
	TRY(context(&dev));
	TRY(known_function(dev, f));
	if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
		violate("attribute %d is not known here", attribute);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (value < 0 || value > MAX_SHARED)
		return CUDA_ERROR_INVALID_VALUE;
	f->shared = value;
	return CUDA_SUCCESS;
}

CUresult cu_function_param(CUfunction f, size_t i, size_t *offset, size_t *size) {
	ENTER(function_param, "f=%p i=%zu", (void *)f, i);
	struct device *dev;
	TRY(context(&dev));
	TRY(known_function(dev, f));
	if (i >= f->params)
		return CUDA_ERROR_INVALID_VALUE;
	*offset = f->offsets[i];
	*size = f->sizes[i];
	return CUDA_SUCCESS;
}

CUresult cu_occupancy(int *blocks, CUfunction f, int threads, size_t shared) {
	ENTER(occupancy, "f=%p threads=%d shared=%zu", (void *)f, threads, shared);
	struct device *dev;
	TRY(context(&dev));
	TRY(known_function(dev, f));
	if (threads <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*blocks = threads > MAX_THREADS || shared > (size_t)f->shared ? 0 : 2 * MAX_THREADS / threads;
	return CUDA_SUCCESS;
}

CUresult cu_occupancy_block(int *blocks, int *threads, CUfunction f, CUoccupancyB2DSize shared_of, size_t shared, int limit) {
	ENTER(occupancy_block, "f=%p shared=%zu limit=%d", (void *)f, shared, limit);
	struct device *dev;
	TRY(context(&dev));
	TRY(known_function(dev, f));
	if (shared_of != NULL)
		violate("a function of the block size is not modelled");
	*threads = MAX_THREADS;
	*blocks = 264;
	return CUDA_SUCCESS;
}

// arguments is the buffer that extra names.
static CUresult arguments(void **params, void **extra, const unsigned char **args, size_t *n) {
	*args = NULL;
	*n = 0;
	if (params != NULL)
		violate("the parameters are pointers");
	for (; extra != NULL && *extra != (void *)CU_LAUNCH_PARAM_END; extra += 2)
		if (*extra == (void *)CU_LAUNCH_PARAM_BUFFER_POINTER)
			*args = extra[1];
		else if (*extra == (void *)CU_LAUNCH_PARAM_BUFFER_SIZE)
			*n = *(size_t *)extra[1];
		else
			return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

// describe writes a launch to text.
static void describe(char text[400], const CUlaunchConfig *c, CUfunction f, void **params, void **extra) {
	const unsigned char *args;
	size_t n;
	int at = snprintf(text, 400, "f=%p grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%p", (void *)f, c->gridDimX, c->gridDimY, c->gridDimZ,
			  c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes, (void *)c->hStream);
	for (unsigned int i = 0; i < c->numAttrs; i++) {
		const CUlaunchAttributeValue *v = &c->attrs[i].value;
		at += snprintf(text + at, (size_t)(400 - at), " %d:%u,%u,%u", c->attrs[i].id, v->clusterDim.x, v->clusterDim.y, v->clusterDim.z);
	}
	at += snprintf(text + at, (size_t)(400 - at), " args=");
	if (arguments(params, extra, &args, &n) != CUDA_SUCCESS)
		return;
	for (size_t i = 0; i < n && at < 398; i++)
		at += snprintf(text + at, (size_t)(400 - at), "%02x", args[i]);
}

CUresult run_node(struct device *dev, const struct node *node) {
	if (node->f == NULL) {
		struct fill f;
		memcpy(&f, node->args, sizeof f);
		if (reach(dev, f.dst, f.n * f.width, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, true) != CUDA_SUCCESS)
			fake.lost = true; // the card looks only when the work runs
		else
			run_fill(&f);
		return CUDA_SUCCESS;
	}
	TRY(known_function(dev, node->f));
	if (strcmp(node->f->name, "fill_bytes") != 0 || node->n < 20)
		return CUDA_SUCCESS;
	unsigned long long p, n;
	memcpy(&p, node->args, sizeof p);
	memcpy(&n, node->args + 8, sizeof n);
	if (reach(dev, p, n, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, true) != CUDA_SUCCESS) {
		fake.lost = true; // as if the kernel had faulted
		return CUDA_SUCCESS;
	}
	for (size_t done = 0, rest; done < n; done += rest) {
		struct span *s = span_at(p + done);
		rest = s->size - (p + done - s->p);
		rest = rest < n - done ? rest : n - done;
		memset(s->bytes + (p + done - s->p), node->args[16], rest);
	}
	return CUDA_SUCCESS;
}

// start checks a launch, and runs it or adds it to the capture of its stream.
static CUresult start(const CUlaunchConfig *c, CUfunction f, void **params, void **extra) {
	struct device *dev;
	struct stream *s;
	const unsigned char *args;
	struct node *node = NULL;
	size_t n, need = 0;
	bool run;
	TRY(context(&dev));
	TRY(known_function(dev, f));
	TRY(queue(dev, c->hStream, &run));
	TRY(arguments(params, extra, &args, &n));
	if (c->gridDimX == 0 || c->gridDimY == 0 || c->gridDimZ == 0 || c->blockDimX == 0 || c->blockDimY == 0 || c->blockDimZ == 0) {
		violate("an extent is 0");
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (c->gridDimX > INT32_MAX || c->gridDimY > UINT16_MAX || c->gridDimZ > UINT16_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	if ((unsigned long long)c->blockDimX * c->blockDimY > MAX_THREADS || c->blockDimX * c->blockDimY * c->blockDimZ > MAX_THREADS || c->blockDimZ > 64)
		return CUDA_ERROR_INVALID_VALUE;
	if (c->sharedMemBytes > (unsigned int)f->shared)
		return CUDA_ERROR_INVALID_VALUE;
	if (f->params > 0)
		need = f->offsets[f->params - 1] + f->sizes[f->params - 1];
	if (n < need) {
		violate("%zu bytes of arguments for %zu of parameters", n, need);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!run) {
		TRY(stream_of(dev, c->hStream, &s));
		return add_node(&s->captured, f, args, n);
	}
	TRY(add_node(&node, f, args, n));
	CUresult r = run_node(dev, node);
	free_nodes(&node);
	return r;
}

CUresult cu_launch(CUfunction f, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y,
		   unsigned int block_z, unsigned int shared, CUstream stream, void **params, void **extra) {
	char text[400];
	CUlaunchConfig c = {.gridDimX = grid_x, .gridDimY = grid_y, .gridDimZ = grid_z, .blockDimX = block_x, .blockDimY = block_y,
			    .blockDimZ = block_z, .sharedMemBytes = shared, .hStream = stream};
	describe(text, &c, f, params, extra);
	ENTER(launch, "%s", text);
	return start(&c, f, params, extra);
}

CUresult cu_launch_ex(const CUlaunchConfig *c, CUfunction f, void **params, void **extra) {
	char text[400];
	describe(text, c, f, params, extra);
	ENTER(launch_ex, "%s", text);
	for (unsigned int i = 0; i < c->numAttrs; i++)
		if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION && c->gridDimX % c->attrs[i].value.clusterDim.x != 0)
			return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	return start(c, f, params, extra);
}

void count_modules(struct fake_count *out) {
	for (struct CUmod_st *m = fake.modules; m != NULL; m = m->next)
		out->modules += !m->gone;
}

void modules_gone(struct device *dev) {
	for (struct CUmod_st *m = fake.modules; m != NULL; m = m->next)
		m->gone = m->gone || (m->device == dev && m->epoch == dev->epoch);
}

void reset_modules(void) {
	for (struct CUmod_st *m = fake.modules; m != NULL;) {
		struct CUmod_st *next = m->next;
		free_module(m);
		m = next;
	}
	fake.modules = NULL;
}
