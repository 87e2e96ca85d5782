// Tensors of other libraries.
#include "dlpack.h"

#include <stddef.h>

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
