// Streams, whose work is always done, events, what captures forbid, and words in memory.
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct event {
	struct event *next;
	struct device *device;
	unsigned int epoch, flags;
	bool gone; // its context was reset
	bool opened; // another process made it
	bool recorded, captured;
	struct timespec at;
};

static _Thread_local CUstreamCaptureMode mode; // global unless exchanged

bool restore_mode(void) {
	bool other = mode != CU_STREAM_CAPTURE_MODE_GLOBAL;
	mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
	return other;
}

#define LEGACY ((CUstream)1)
#define PER_THREAD ((CUstream)2)

// own_default finds the default stream of this thread, and makes it.
static CUresult own_default(struct device *dev, struct stream **out) {
	for (*out = fake.streams; *out != NULL; *out = (*out)->next)
		if ((*out)->per_thread && pthread_equal((*out)->thread, pthread_self()) && (*out)->device == dev && (*out)->epoch == dev->epoch)
			return CUDA_SUCCESS;
	*out = malloc(sizeof **out);
	if (*out == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	**out = (struct stream){.next = fake.streams, .device = dev, .epoch = dev->epoch, .per_thread = true, .thread = pthread_self()};
	fake.streams = *out;
	return CUDA_SUCCESS;
}

CUresult stream_of(struct device *dev, CUstream s, struct stream **out) {
	if (s == PER_THREAD)
		return own_default(dev, out);
	if (s == LEGACY)
		s = NULL;
	*out = fake.streams;
	if (s == NULL)
		*out = NULL;
	while (*out != NULL && *out != (struct stream *)s)
		*out = (*out)->next;
	if (s != NULL && *out == NULL) {
		violate("stream %p does not exist", (void *)s);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	if (*out != NULL && ((*out)->device != dev || (*out)->epoch != dev->epoch)) {
		violate("stream %p is of another context", (void *)s);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	return CUDA_SUCCESS;
}

static CUresult event_of(CUevent e, struct event **out) {
	*out = fake.events;
	while (*out != NULL && *out != (struct event *)e)
		*out = (*out)->next;
	if (*out == NULL) {
		violate("event %p does not exist", (void *)e);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	if ((*out)->epoch != (*out)->device->epoch) {
		violate("event %p outlived its context", (void *)e);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	return CUDA_SUCCESS;
}

CUresult queue(struct device *dev, CUstream s, bool *run) {
	struct stream *stream;
	TRY(stream_of(dev, s, &stream));
	if (stream != NULL && stream->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	*run = stream == NULL || stream->capture == CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

// forbids reports whether a capture forbids this thread what might wait.
static bool forbids(const struct stream *s) {
	bool own = pthread_equal(s->thread, pthread_self()) && s->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	if (s->capture != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return false;
	switch (mode) {
	case CU_STREAM_CAPTURE_MODE_GLOBAL:
		return own || s->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
	case CU_STREAM_CAPTURE_MODE_THREAD_LOCAL:
		return own;
	case CU_STREAM_CAPTURE_MODE_RELAXED:
		break;
	}
	return false;
}

CUresult unsafe_in_capture(void) {
	CUresult r = CUDA_SUCCESS;
	for (struct stream *s = fake.streams; s != NULL; s = s->next)
		if (forbids(s)) {
			s->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	return r;
}

// destroy_capture is what a wait for a capturing stream does and returns.
static CUresult destroy_capture(struct stream *s) {
	switch (s->capture) {
	case CU_STREAM_CAPTURE_STATUS_NONE:
		return CUDA_SUCCESS;
	case CU_STREAM_CAPTURE_STATUS_INVALIDATED:
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	case CU_STREAM_CAPTURE_STATUS_ACTIVE:
		break;
	}
	s->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult cu_ctx_sync(void) {
	MEETS(ctx_sync, LOOKS_AT_CONTEXT, NULL);
	ENTER(ctx_sync, "%s", "");
	struct device *dev;
	CUresult r = CUDA_SUCCESS;
	TRY(context(&dev));
	for (struct stream *s = fake.streams; s != NULL; s = s->next)
		if (s->device == dev && s->epoch == dev->epoch) {
			CUresult destroyed = destroy_capture(s);
			if (r == CUDA_SUCCESS)
				r = destroyed;
		}
	release_pools(dev);
	return r;
}

static CUresult new_stream(CUstream *stream, unsigned int flags) {
	struct device *dev;
	TRY(context(&dev));
	TRY(unsafe_in_capture());
	if (flags != CU_STREAM_NON_BLOCKING) {
		violate("flags are %u: the stream would wait for the legacy default stream", flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct stream *s = malloc(sizeof *s);
	if (s == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*s = (struct stream){.next = fake.streams, .device = dev, .epoch = dev->epoch};
	fake.streams = s;
	*stream = (CUstream)s;
	return CUDA_SUCCESS;
}

CUresult cu_stream_create(CUstream *stream, unsigned int flags) {
	ENTER(stream_create, "flags=%u", flags);
	return new_stream(stream, flags);
}

CUresult cu_stream_create_priority(CUstream *stream, unsigned int flags, int priority) {
	ENTER(stream_create_priority, "flags=%u priority=%d", flags, priority);
	return new_stream(stream, flags);
}

CUresult cu_stream_priorities(int *least, int *greatest) {
	ENTER(stream_priorities, "%s", "");
	struct device *dev;
	TRY(context(&dev));
	*least = 0;
	*greatest = -5;
	return CUDA_SUCCESS;
}

CUresult cu_stream_destroy(CUstream stream) {
	MEETS(stream_destroy, LOOKS, stream);
	ENTER(stream_destroy, "stream=%p", (void *)stream);
	struct device *dev;
	struct stream *s;
	CUresult lost = context(&dev);
	if (lost != CUDA_SUCCESS && lost != CUDA_ERROR_ILLEGAL_ADDRESS)
		return lost;
	TRY(stream_of(dev, stream, &s));
	if (s == NULL || s->per_thread)
		return CUDA_ERROR_INVALID_HANDLE;
	TRY(unsafe_in_capture());
	struct stream **at = &fake.streams;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	free_nodes(&s->captured);
	free(s);
	return lost;
}

CUresult cu_stream_sync(CUstream stream) {
	ENTER(stream_sync, "stream=%p", (void *)stream);
	struct device *dev;
	struct stream *s;
	TRY(context(&dev));
	TRY(stream_of(dev, stream, &s));
	if (s != NULL)
		TRY(destroy_capture(s));
	TRY(unsafe_in_capture());
	release_pools(dev);
	return CUDA_SUCCESS;
}

// cu_stream_ctx takes a stream of any context.
CUresult cu_stream_ctx(CUstream stream, CUcontext *ctx) {
	ENTER(stream_ctx, "stream=%p", (void *)stream);
	struct device *dev;
	struct stream *s = fake.streams;
	TRY(context(&dev));
	while (s != NULL && s != (struct stream *)stream)
		s = s->next;
	if (s == NULL) {
		violate("stream %p does not exist", (void *)stream);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	*ctx = (CUcontext)s->device;
	return CUDA_SUCCESS;
}

CUresult cu_stream_query(CUstream stream) {
	MEETS(stream_query, LOOKS, stream);
	ENTER(stream_query, "stream=%p", (void *)stream);
	struct device *dev;
	struct stream *s;
	TRY(context(&dev));
	TRY(stream_of(dev, stream, &s));
	if (s != NULL)
		TRY(destroy_capture(s));
	return unsafe_in_capture();
}

CUresult cu_stream_is_capturing(CUstream stream, CUstreamCaptureStatus *status) {
	ENTER(stream_is_capturing, "stream=%p", (void *)stream);
	struct device *dev;
	struct stream *s;
	TRY(context(&dev));
	TRY(stream_of(dev, stream, &s));
	*status = s == NULL ? CU_STREAM_CAPTURE_STATUS_NONE : s->capture;
	for (struct stream *t = fake.streams; s == NULL && t != NULL; t = t->next)
		if (t->per_thread && t->device == dev && t->epoch == dev->epoch && t->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE)
			return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; // and the capture goes on
	return CUDA_SUCCESS;
}

CUresult cu_exchange_capture_mode(CUstreamCaptureMode *wanted) {
	ENTER(exchange_capture_mode, "mode=%d", *wanted);
	if ((int)*wanted < 0 || *wanted > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	CUstreamCaptureMode old = mode;
	mode = *wanted;
	*wanted = old;
	return CUDA_SUCCESS;
}

CUresult cu_event_create(CUevent *event, unsigned int flags) {
	ENTER(event_create, "flags=%u", flags);
	struct device *dev;
	TRY(context(&dev));
	TRY(unsafe_in_capture());
	if (flags & ~(unsigned int)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)) {
		violate("flags are %u", flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_INVALID_VALUE;
	return new_event(dev, flags, false, event);
}

CUresult new_event(struct device *dev, unsigned int flags, bool opened, CUevent *event) {
	struct event *e = malloc(sizeof *e);
	if (e == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*e = (struct event){.next = fake.events, .device = dev, .epoch = dev->epoch, .flags = flags, .opened = opened};
	fake.events = e;
	*event = (CUevent)e;
	return CUDA_SUCCESS;
}

CUresult event_leaves(CUevent event) {
	struct event *e;
	TRY(event_of(event, &e));
	if (e->opened)
		violate("event %p was opened", (void *)event);
	return (e->flags & CU_EVENT_INTERPROCESS) && !e->opened ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cu_event_destroy(CUevent event) {
	ENTER(event_destroy, "event=%p", (void *)event);
	struct device *dev;
	struct event *e;
	CUresult lost = context(&dev);
	if (lost != CUDA_SUCCESS && lost != CUDA_ERROR_ILLEGAL_ADDRESS)
		return lost;
	TRY(event_of(event, &e));
	TRY(unsafe_in_capture());
	struct event **at = &fake.events;
	while (*at != e)
		at = &(*at)->next;
	*at = e->next;
	free(e);
	return lost;
}

CUresult cu_event_record(CUevent event, CUstream stream) {
	MEETS(event_record, LOOKS, stream);
	ENTER(event_record, "event=%p stream=%p", (void *)event, (void *)stream);
	struct device *dev;
	struct event *e;
	bool run;
	TRY(context(&dev));
	TRY(event_of(event, &e));
	TRY(queue(dev, stream, &run));
	if (e->device != dev)
		return CUDA_ERROR_INVALID_HANDLE;
	e->captured = !run;
	e->recorded = run;
	clock_gettime(CLOCK_MONOTONIC, &e->at);
	return CUDA_SUCCESS;
}

// cu_ctx_record_event destroys captures and refuses, as a wait for the context does.
CUresult cu_ctx_record_event(CUcontext ctx, CUevent event) {
	MEETS(ctx_record_event, LOOKS_AT_CONTEXT, NULL);
	ENTER(ctx_record_event, "event=%p", (void *)event);
	struct device *dev;
	struct event *e;
	CUresult r = CUDA_SUCCESS;
	TRY(context(&dev));
	TRY(event_of(event, &e));
	if ((struct device *)ctx != dev || e->device != dev)
		return CUDA_ERROR_INVALID_HANDLE;
	for (struct stream *s = fake.streams; s != NULL; s = s->next)
		if (s->device == dev && s->epoch == dev->epoch) {
			CUresult destroyed = destroy_capture(s);
			if (r == CUDA_SUCCESS)
				r = destroyed;
		}
	TRY(r);
	e->captured = false;
	e->recorded = true;
	clock_gettime(CLOCK_MONOTONIC, &e->at);
	return CUDA_SUCCESS;
}

CUresult cu_stream_wait_event(CUstream stream, CUevent event, unsigned int flags) {
	ENTER(stream_wait_event, "stream=%p event=%p flags=%u", (void *)stream, (void *)event, flags);
	struct device *dev;
	struct event *e;
	bool run;
	TRY(context(&dev));
	TRY(queue(dev, stream, &run));
	TRY(event_of(event, &e));
	if (flags != 0) {
		violate("flags are %u", flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (run && e->captured) {
		violate("a capture that spreads to a second stream is not modelled");
		return CUDA_ERROR_UNKNOWN;
	}
	return CUDA_SUCCESS;
}

// settled checks an event that the host queries or waits for. It may be of another
// device.
static CUresult settled(CUevent event) {
	struct device *dev;
	struct event *e;
	TRY(context(&dev));
	TRY(event_of(event, &e));
	if (e->captured)
		return CUDA_ERROR_CAPTURED_EVENT;
	return unsafe_in_capture();
}

CUresult cu_event_sync(CUevent event) {
	ENTER(event_sync, "event=%p", (void *)event);
	TRY(settled(event));
	release_pools(((struct event *)event)->device);
	return CUDA_SUCCESS;
}

CUresult cu_event_query(CUevent event) {
	ENTER(event_query, "event=%p", (void *)event);
	return settled(event);
}

CUresult cu_event_elapsed(float *ms, CUevent from, CUevent to) {
	ENTER(event_elapsed, "from=%p to=%p", (void *)from, (void *)to);
	struct device *dev;
	struct event *a, *b;
	TRY(context(&dev));
	TRY(event_of(from, &a));
	TRY(event_of(to, &b));
	if (!a->recorded || !b->recorded || ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_INVALID_HANDLE;
	*ms = (float)(b->at.tv_sec - a->at.tv_sec) * 1e3f + (float)(b->at.tv_nsec - a->at.tv_nsec) * 1e-6f;
	return CUDA_SUCCESS;
}

// word is the memory of a word that a stream writes or waits for, or NULL if the
// stream is being captured.
static CUresult word(CUstream stream, CUdeviceptr p, size_t width, int need, unsigned char **out) {
	struct device *dev;
	bool run;
	TRY(context(&dev));
	TRY(queue(dev, stream, &run));
	if (p % width != 0)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(reach(dev, p, width, need, false));
	struct span *s = span_at(p);
	*out = run ? s->bytes + (p - s->p) : NULL;
	return CUDA_SUCCESS;
}

static CUresult known_flags(unsigned int flags, unsigned int known) {
	if (flags == known)
		return CUDA_SUCCESS;
	violate("flags are %u", flags);
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult reached(bool done, CUdeviceptr p) {
	if (done)
		return CUDA_SUCCESS;
	violate("the stream would wait for the word at %#llx for ever", p);
	return CUDA_ERROR_UNKNOWN;
}

CUresult cu_wait_value32(CUstream stream, CUdeviceptr p, cuuint32_t value, unsigned int flags) {
	ENTER(wait_value32, "stream=%p p=%#llx value=%#x flags=%u", (void *)stream, p, value, flags);
	unsigned char *at;
	cuuint32_t now;
	TRY(word(stream, p, sizeof now, CU_MEM_ACCESS_FLAGS_PROT_READ, &at));
	TRY(known_flags(flags, CU_STREAM_WAIT_VALUE_GEQ));
	if (at == NULL)
		return CUDA_SUCCESS;
	memcpy(&now, at, sizeof now);
	return reached((int32_t)(now - value) >= 0, p);
}

CUresult cu_wait_value64(CUstream stream, CUdeviceptr p, cuuint64_t value, unsigned int flags) {
	ENTER(wait_value64, "stream=%p p=%#llx value=%#llx flags=%u", (void *)stream, p, (unsigned long long)value, flags);
	unsigned char *at;
	cuuint64_t now;
	TRY(word(stream, p, sizeof now, CU_MEM_ACCESS_FLAGS_PROT_READ, &at));
	TRY(known_flags(flags, CU_STREAM_WAIT_VALUE_GEQ));
	if (at == NULL)
		return CUDA_SUCCESS;
	memcpy(&now, at, sizeof now);
	return reached((int64_t)(now - value) >= 0, p);
}

static CUresult write_word(CUstream stream, CUdeviceptr p, const void *value, size_t width, unsigned int flags) {
	unsigned char *at;
	TRY(word(stream, p, width, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &at));
	TRY(known_flags(flags, CU_STREAM_WRITE_VALUE_DEFAULT));
	if (at != NULL)
		memcpy(at, value, width);
	return CUDA_SUCCESS;
}

CUresult cu_write_value32(CUstream stream, CUdeviceptr p, cuuint32_t value, unsigned int flags) {
	ENTER(write_value32, "stream=%p p=%#llx value=%#x flags=%u", (void *)stream, p, value, flags);
	return write_word(stream, p, &value, sizeof value, flags);
}

CUresult cu_write_value64(CUstream stream, CUdeviceptr p, cuuint64_t value, unsigned int flags) {
	ENTER(write_value64, "stream=%p p=%#llx value=%#llx flags=%u", (void *)stream, p, (unsigned long long)value, flags);
	return write_word(stream, p, &value, sizeof value, flags);
}

void count_streams(struct fake_count *out) {
	for (struct stream *s = fake.streams; s != NULL; s = s->next)
		out->streams += !s->gone && !s->per_thread;
	for (struct event *e = fake.events; e != NULL; e = e->next)
		out->events += !e->gone;
}

// streams_gone marks what a reset took and keeps it, to recognise a later use.
void streams_gone(struct device *dev) {
	for (struct stream *s = fake.streams; s != NULL; s = s->next)
		if (s->device == dev && s->epoch == dev->epoch) {
			s->gone = true;
			s->capture = CU_STREAM_CAPTURE_STATUS_NONE;
			free_nodes(&s->captured);
		}
	for (struct event *e = fake.events; e != NULL; e = e->next)
		e->gone = e->gone || (e->device == dev && e->epoch == dev->epoch);
}

void reset_streams(void) {
	for (struct stream *s = fake.streams; s != NULL;) {
		struct stream *next = s->next;
		free_nodes(&s->captured);
		free(s);
		s = next;
	}
	for (struct event *e = fake.events; e != NULL;) {
		struct event *next = e->next;
		free(e);
		e = next;
	}
	fake.streams = NULL;
	fake.events = NULL;
}
