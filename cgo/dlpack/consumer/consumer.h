// A library that takes DLPack's tensors, written from the specification alone: it shares no header with
// the package that it tests. It also makes tensors, good and bad ones.
#ifndef CUVMM_CONSUMER_H
#define CUVMM_CONSUMER_H

#include <stdint.h>

typedef struct {
	int32_t device_type;
	int32_t device_id;
} DLDevice;

typedef struct {
	uint8_t code;
	uint8_t bits;
	uint16_t lanes;
} DLDataType;

typedef struct {
	void *data;
	DLDevice device;
	int32_t ndim;
	DLDataType dtype;
	int64_t *shape;
	int64_t *strides;
	uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
	DLTensor dl_tensor;
	void *manager_ctx;
	void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

typedef struct {
	uint32_t major;
	uint32_t minor;
} DLPackVersion;

typedef struct DLManagedTensorVersioned {
	DLPackVersion version;
	void *manager_ctx;
	void (*deleter)(struct DLManagedTensorVersioned *self);
	uint64_t flags;
	DLTensor dl_tensor;
} DLManagedTensorVersioned;

// sum adds up a tensor's bytes on the host, in several threads at once; each of them sees the same.
// -1: they do not.
int64_t sum(void *p, int versioned, int threads);

// delete_all calls the deleter of each tensor, in several threads, so often.
int delete_all(void **p, int versioned, int n, int threads, int times);

// delete_cancelled calls a deleter in a thread that was cancelled. It returns whether the thread has ended so.
int delete_cancelled(void *p, int versioned);

// made is a tensor of this library. Its deleter counts its calls.
struct made {
	union {
		DLManagedTensor managed;
		DLManagedTensorVersioned versioned;
	} of;
	int64_t shape[80], strides[80];
	char data[256];
	int deletes;
};

struct made *make_tensor(int versioned);
DLTensor *tensor_of(struct made *m, int versioned);
void drop_deleter(struct made *m, int versioned);
void set_panicking(struct made *m, int versioned); // its deleter calls Go, which panics

#endif
