// A library's symbols as a table, and finding them.
#ifndef CUVMM_DL_H
#define CUVMM_DL_H

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

struct cuvmm_symbol {
	const char *name; // NULL: the end of a table
	size_t offset;    // of its address in the struct that has those of all
	int required;
};

// cuvmm_bind writes the address of each symbol into api, NULL for what the library does not
// have. It returns the first required symbol that is missing, NULL if there is none.
static inline const char *cuvmm_bind(void *library, const struct cuvmm_symbol *symbols, void *api) {
	const char *missing = NULL;
	for (const struct cuvmm_symbol *s = symbols; s->name != NULL; s++) {
		void *address = dlsym(library, s->name);
		memcpy((char *)api + s->offset, &address, sizeof address);
		if (address == NULL && s->required && missing == NULL)
			missing = s->name;
	}
	return missing;
}

#endif
