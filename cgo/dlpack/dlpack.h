// DLPack's structs, as its specification lays them out, and the table of those that Go exports.
// What Go calls does not call back into Go, but for cuvmm_dl_delete, which runs code of others.
#ifndef CUVMM_DLPACK_H
#define CUVMM_DLPACK_H

#include <stdint.h>

struct cuvmm_dl_tensor {
	void *data;
	int32_t device_type, device_id;
	int32_t ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape, *strides; // strides count elements; NULL: row after row
	uint64_t byte_offset;
};

// cuvmm_dl_managed is DLManagedTensor.
struct cuvmm_dl_managed {
	struct cuvmm_dl_tensor tensor;
	void *manager_ctx;
	void (*deleter)(struct cuvmm_dl_managed *self);
};

// cuvmm_dl_versioned is DLManagedTensorVersioned. All major versions have the fields before the
// tensor at the same places.
struct cuvmm_dl_versioned {
	uint32_t major, minor;
	void *manager_ctx;
	void (*deleter)(struct cuvmm_dl_versioned *self);
	uint64_t flags; // bit 0: read-only; bit 1: a copy
	struct cuvmm_dl_tensor tensor;
};

enum {
	CUVMM_DL_OUT = 8, // dimensions of a tensor that is exported, at most
};

// cuvmm_dl_info is a tensor that is exported, without pointers. major is 0 for the struct without a version.
struct cuvmm_dl_info {
	uint32_t major, minor;
	uint64_t flags, data;
	int32_t device_type, device_id, ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t shape[CUVMM_DL_OUT], strides[CUVMM_DL_OUT];
};

struct cuvmm_dl_slot;

// cuvmm_dl_new_slot makes a slot, which is never freed. NULL: there is no memory.
struct cuvmm_dl_slot *cuvmm_dl_new_slot(void);

// cuvmm_dl_export makes a free slot the struct that info describes. The slot's address is the struct's.
void cuvmm_dl_export(struct cuvmm_dl_slot *s, const struct cuvmm_dl_info *info);

// cuvmm_dl_claim takes the tensor back, unless its deleter has been called: it returns whether it has
// taken it.
int cuvmm_dl_claim(struct cuvmm_dl_slot *s);

// cuvmm_dl_open returns the event descriptor that a deleter writes to, or -1 and errno. It stays open: a
// deleter may write to it after the last tensor is gone.
int cuvmm_dl_open(void);

// cuvmm_dl_wake writes to the event descriptor. It returns whether it has.
int cuvmm_dl_wake(void);

// cuvmm_dl_deleted takes the list of the slots whose deleters were called. Each is free once
// cuvmm_dl_next has returned the one after it.
struct cuvmm_dl_slot *cuvmm_dl_deleted(void);
struct cuvmm_dl_slot *cuvmm_dl_next(struct cuvmm_dl_slot *s);

// cuvmm_dl_repeated is how often a deleter was called for a slot that had no tensor.
uint64_t cuvmm_dl_repeated(void);

// cuvmm_dl_delete calls the deleter of either struct, if there is one.
void cuvmm_dl_delete(void *p, int versioned);

#endif
