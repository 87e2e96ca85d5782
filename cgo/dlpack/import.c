// Tensors of other libraries.
#include "dlpack.h"

#include <stddef.h>
#include <string.h>

void cuvmm_dl_read(const void *p, int versioned, struct cuvmm_dl_info *info) {
	const struct cuvmm_dl_tensor *t = &((const struct cuvmm_dl_managed *)p)->tensor;
	if (versioned) {
		const struct cuvmm_dl_versioned *v = p;
		info->major = v->major;
		info->minor = v->minor;
		if (v->major != 1)
			return;
		info->flags = v->flags;
		t = &v->tensor;
	}
	info->data = (uintptr_t)t->data;
	info->byte_offset = t->byte_offset;
	info->device_type = t->device_type;
	info->device_id = t->device_id;
	info->ndim = t->ndim;
	info->code = t->code;
	info->bits = t->bits;
	info->lanes = t->lanes;
	info->has_shape = t->shape != NULL;
	info->has_strides = t->strides != NULL;
	if (t->ndim < 1 || t->ndim > CUVMM_DL_IN)
		return;
	if (t->shape != NULL)
		memcpy(info->shape, t->shape, (size_t)t->ndim * sizeof(int64_t));
	if (t->strides != NULL)
		memcpy(info->strides, t->strides, (size_t)t->ndim * sizeof(int64_t));
}

void cuvmm_dl_delete(void *p, int versioned) {
	if (versioned) {
		struct cuvmm_dl_versioned *v = p;
		if (v->deleter != NULL)
			v->deleter(v);
		return;
	}
	struct cuvmm_dl_managed *m = p;
	if (m->deleter != NULL)
		m->deleter(m);
}
