// Programs, and what passes for compiling them. The image has a sum of all that the
// real compiler would look at, so that two sources can be told apart.
#include "fake.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((section(".data"))) volatile int fake_major = 12;
__attribute__((section(".data"))) volatile int fake_minor = 4;

static const int known_archs[] = {75, 80, 90};
enum { KNOWN_ARCHS = sizeof known_archs / sizeof known_archs[0] };

nvrtcResult rtc_version(int *major, int *minor) {
	ENTER(version);
	*major = fake_major;
	*minor = fake_minor;
	return NVRTC_SUCCESS;
}

nvrtcResult rtc_arch_count(int *count) {
	ENTER(arch_count);
	*count = KNOWN_ARCHS;
	return NVRTC_SUCCESS;
}

nvrtcResult rtc_archs(int *archs) {
	ENTER(archs);
	memcpy(archs, known_archs, sizeof known_archs);
	return NVRTC_SUCCESS;
}

// It reads nothing that changes, so it takes no lock and cannot be made to fail.
const char *rtc_error_string(nvrtcResult result) {
	static const char *const text[] = {
		"NVRTC_SUCCESS", "NVRTC_ERROR_OUT_OF_MEMORY", "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
		"NVRTC_ERROR_INVALID_INPUT", "NVRTC_ERROR_INVALID_PROGRAM", "NVRTC_ERROR_INVALID_OPTION",
		"NVRTC_ERROR_COMPILATION", "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
		"NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
		"NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION", "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
	};
	return result >= 0 && result < (int)(sizeof text / sizeof text[0]) ? text[result] : "NVRTC_ERROR unknown";
}

static char *copy(const char *s) {
	char *c = strdup(s);
	if (c == NULL)
		abort();
	return c;
}

static char **copies(int n, const char *const *from) {
	char **to = calloc((size_t)n + 1, sizeof *to);
	if (to == NULL)
		abort();
	for (int i = 0; i < n; i++)
		to[i] = copy(from[i]);
	return to;
}

static void free_all(int n, char **list) {
	for (int i = 0; list != NULL && i < n; i++)
		free(list[i]);
	free(list);
}

void end_program(nvrtcProgram p) {
	for (nvrtcProgram *at = &programs; *at != NULL; at = &(*at)->next)
		if (*at == p) {
			*at = p->next;
			break;
		}
	free_all(p->header_count, p->headers);
	free_all(p->header_count, p->header_names);
	free_all(p->expression_count, p->lowered);
	free_all(p->expression_count, p->expressions);
	free(p->source);
	free(p->name);
	free(p->log.at);
	free(p->ptx.at);
	free(p->cubin.at);
	free(p);
}

static bool lives(nvrtcProgram p) {
	for (nvrtcProgram q = programs; q != NULL; q = q->next)
		if (q == p)
			return true;
	violate("no such program");
	return false;
}

nvrtcResult rtc_create(nvrtcProgram *program, const char *source, const char *name, int count,
		const char *const *headers, const char *const *header_names) {
	ENTER(create);
	if (program == NULL || source == NULL || count < 0 || (count > 0 && (headers == NULL || header_names == NULL))) {
		violate("%d headers, a NULL among the arguments", count);
		return INVALID_INPUT;
	}
	nvrtcProgram p = calloc(1, sizeof *p);
	if (p == NULL)
		return NVRTC_ERROR_OUT_OF_MEMORY;
	*p = (struct _nvrtcProgram){
		.next = programs,
		.source = copy(source),
		.name = copy(name && *name ? name : "default_program"),
		.header_count = count,
		.headers = copies(count, headers),
		.header_names = copies(count, header_names),
	};
	programs = *program = p;
	return NVRTC_SUCCESS;
}

nvrtcResult rtc_destroy(nvrtcProgram *program) {
	ENTER(destroy);
	if (program == NULL || !lives(*program))
		return INVALID_PROGRAM;
	end_program(*program);
	*program = NULL;
	return NVRTC_SUCCESS;
}

nvrtcResult rtc_add_expression(nvrtcProgram p, const char *expression) {
	ENTER(add_expression);
	if (!lives(p))
		return INVALID_PROGRAM;
	if (p->tried) {
		violate("after compiling");
		return NO_NAMES_AFTER_COMPILATION;
	}
	char **grown = realloc(p->expressions, ((size_t)p->expression_count + 1) * sizeof *grown);
	if (grown == NULL)
		return NVRTC_ERROR_OUT_OF_MEMORY;
	grown[p->expression_count++] = copy(expression);
	p->expressions = grown;
	return NVRTC_SUCCESS;
}

// sum is FNV-1a, with a mark between texts.
static void sum(uint64_t *h, const char *text) {
	for (; *text != 0; text++)
		*h = (*h ^ (unsigned char)*text) * 0x100000001b3;
	*h = (*h ^ 0x100) * 0x100000001b3;
}

// read goes through a text by lines, and into what it includes. It logs what the real
// compiler would, and returns the number of errors.
static int read_text(nvrtcProgram p, const char *name, const char *text, int depth) {
	int errors = 0;
	for (int number = 1; *text != 0; number++) {
		size_t n = strcspn(text, "\n");
		char include[256] = "";
		char line[256];
		snprintf(line, sizeof line, "%.*s", (int)n, text);
		if (strncmp(line, "#error", 6) == 0) {
			add(&p->log, "%s(%d): error: #error directive:%s\n", name, number, line + 6);
			errors++;
		} else if (strncmp(line, "#warning", 8) == 0) {
			add(&p->log, "%s(%d): warning #1105-D: #warning directive:%s\n", name, number, line + 8);
		} else if (sscanf(line, "#include \"%255[^\"]\"", include) == 1) {
			int i = 0;
			while (i < p->header_count && strcmp(p->header_names[i], include) != 0)
				i++;
			if (i == p->header_count) {
				add(&p->log, "%s(%d): catastrophic error: cannot open source file \"%s\"\n", name, number, include);
				errors++;
			} else if (depth < 8) {
				errors += read_text(p, include, p->headers[i], depth + 1);
			}
		}
		text += n + (text[n] == '\n');
	}
	return errors;
}

// lower makes the lowered names. A name expression must begin with a name that the
// source has.
static int lower(nvrtcProgram p) {
	p->lowered = calloc((size_t)p->expression_count + 1, sizeof *p->lowered);
	if (p->lowered == NULL)
		abort();
	for (int i = 0; i < p->expression_count; i++) {
		struct text t = {0};
		const char *e = p->expressions[i];
		char *name = strndup(e, strcspn(e, "<"));
		bool there = name != NULL && strstr(p->source, name) != NULL;
		if (!there)
			add(&p->log, "__nv_name_map(%d): error: identifier \"%s\" is undefined\n", i + 1, name ? name : "");
		free(name);
		if (!there)
			return 1;
		add(&t, "_Z%zu", strlen(e));
		for (; *e != 0; e++)
			add(&t, "%c", isalnum((unsigned char)*e) ? *e : '_');
		p->lowered[i] = t.at;
	}
	return 0;
}

// parse reads the options. It returns the architecture's number, or 0, and whether a
// cubin is made.
static int parse(nvrtcProgram p, int count, const char *const *options, bool *cubin) {
	int arch = 0;
	for (int i = 0; i < count; i++) {
		char prefix[16];
		if (*options[i] != '-') {
			add(&p->log, "nvrtc: error: unrecognized option %s found\n", options[i]);
			return 0;
		}
		if (sscanf(options[i], "--gpu-architecture=%15[a-z]_%d", prefix, &arch) == 2)
			*cubin = strcmp(prefix, "sm") == 0;
	}
	for (int i = 0; i < KNOWN_ARCHS; i++)
		if (known_archs[i] == arch)
			return arch;
	add(&p->log, "nvrtc: error: invalid value for --gpu-architecture (-arch)\n");
	return 0;
}

nvrtcResult rtc_compile(nvrtcProgram p, int count, const char *const *options) {
	__attribute__((cleanup(leave))) struct call call = enter(SYM_compile);
	if (!lives(p))
		return INVALID_PROGRAM;
	if (p->tried) {
		violate("compiled twice");
		return INVALID_PROGRAM;
	}
	p->tried = true; // also where it is made to fail
	if (call.refused)
		return call.code;
	bool cubin = false;
	int arch = parse(p, count, options, &cubin);
	if (arch == 0)
		return INVALID_OPTION;
	int errors = read_text(p, p->name, p->source, 0);
	if (errors == 0)
		errors = lower(p);
	if (errors > 0) {
		add(&p->log, "%d error%s detected in the compilation of \"%s\".\n", errors, errors > 1 ? "s" : "", p->name);
		return COMPILATION;
	}
	uint64_t h = 0xcbf29ce484222325;
	sum(&h, p->source);
	sum(&h, p->name);
	for (int i = 0; i < p->header_count; i++) {
		sum(&h, p->header_names[i]);
		sum(&h, p->headers[i]);
	}
	for (int i = 0; i < count; i++)
		sum(&h, options[i]);
	for (int i = 0; i < p->expression_count; i++)
		sum(&h, p->expressions[i]);
	add(&p->ptx, "// %d.%d\n.target sm_%d\n// %016llx\n", fake_major, fake_minor, arch, (unsigned long long)h);
	if (cubin) {
		add_bytes(&p->cubin, "\x7f" "ELF\0", 5);
		add(&p->cubin, "sm_%d %016llx", arch, (unsigned long long)h);
		add_bytes(&p->cubin, "\0", 1);
	}
	p->compiled = true;
	return NVRTC_SUCCESS;
}

// GIVE_SIZE and GIVE are the two halves of asking for a result. A text is given with its
// zero byte. Of a compilation that failed only the log can be had.
static nvrtcResult ready(nvrtcProgram p, bool compiled) {
	if (!lives(p))
		return INVALID_PROGRAM;
	if (p->compiled || (p->tried && !compiled))
		return NVRTC_SUCCESS;
	violate("before compiling");
	return INVALID_PROGRAM;
}

#define GIVE_SIZE(text, compiled, zero, to) \
	do { \
		nvrtcResult r = ready(p, compiled); \
		if (r == NVRTC_SUCCESS) \
			*(to) = p->text.size + (zero); \
		return r; \
	} while (0)
#define GIVE(text, compiled, zero, to) \
	do { \
		nvrtcResult r = ready(p, compiled); \
		if (r == NVRTC_SUCCESS && p->text.size + (zero) > 0) \
			memcpy(to, p->text.at ? p->text.at : "", p->text.size + (zero)); \
		return r; \
	} while (0)

nvrtcResult rtc_log_size(nvrtcProgram p, size_t *size) {
	ENTER(log_size);
	GIVE_SIZE(log, false, 1, size);
}

nvrtcResult rtc_log(nvrtcProgram p, char *log) {
	ENTER(log);
	GIVE(log, false, 1, log);
}

nvrtcResult rtc_ptx_size(nvrtcProgram p, size_t *size) {
	ENTER(ptx_size);
	GIVE_SIZE(ptx, true, 1, size);
}

nvrtcResult rtc_ptx(nvrtcProgram p, char *ptx) {
	ENTER(ptx);
	GIVE(ptx, true, 1, ptx);
}

nvrtcResult rtc_cubin_size(nvrtcProgram p, size_t *size) {
	ENTER(cubin_size);
	GIVE_SIZE(cubin, true, 0, size);
}

nvrtcResult rtc_cubin(nvrtcProgram p, char *cubin) {
	ENTER(cubin);
	GIVE(cubin, true, 0, cubin);
}

nvrtcResult rtc_lowered_name(nvrtcProgram p, const char *expression, const char **name) {
	ENTER(lowered_name);
	if (!lives(p))
		return INVALID_PROGRAM;
	if (!p->compiled) {
		violate("before compiling");
		return NO_LOWERED_BEFORE_COMPILATION;
	}
	for (int i = 0; i < p->expression_count; i++)
		if (strcmp(p->expressions[i], expression) == 0) {
			*name = p->lowered[i];
			return NVRTC_SUCCESS;
		}
	return NAME_NOT_VALID;
}
