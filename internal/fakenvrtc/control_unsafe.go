//go:build cgo && linux

package fakenvrtc

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror -I${SRCDIR}/lib
#cgo LDFLAGS: -ldl
#include "control.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

// functions is the control functions of one loaded library, by their names there
// without "fake_".
struct functions {
	void *library;
	void (*reset)(void);
	int (*fail)(const char *symbol, int k, int code);
	long long (*calls)(const char *symbol);
	char *(*violations)(void);
	int (*live)(void);
};

// load opens the library and finds its functions. It returns NULL, or why not.
static const char *load(struct functions *f, const char *path) {
	f->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (f->library == NULL)
		return dlerror();
#define FIND(name) \
	do { \
		void *at = dlsym(f->library, "fake_" #name); \
		if (at == NULL) { \
			dlclose(f->library); \
			return "there is no fake_" #name; \
		} \
		memcpy(&f->name, &at, sizeof at); \
	} while (0)
	FIND(reset);
	FIND(fail);
	FIND(calls);
	FIND(violations);
	FIND(live);
	return NULL;
}

static int unload(const struct functions *f) { return dlclose(f->library); }

// Go cannot call a function pointer of C.
static void call_reset(const struct functions *f) { f->reset(); }
static int call_fail(const struct functions *f, const char *symbol, int k, int code) { return f->fail(symbol, k, code); }
static long long call_calls(const struct functions *f, const char *symbol) { return f->calls(symbol); }
static char *call_violations(const struct functions *f) { return f->violations(); }
static int call_live(const struct functions *f) { return f->live(); }
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// control calls the control functions of one loaded library.
type control struct{ f C.struct_functions }

// openControl loads the library at path. One that is loaded already is the same
// one. The caller must close it.
//
// Safety: C keeps neither the name nor a Go pointer.
func openControl(path string) (*control, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	// The loader's text belongs to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := &control{}
	if why := C.load(&c.f, name); why != nil {
		return nil, errors.New(C.GoString(why))
	}
	return c, nil
}

// close unloads the library, which stays as long as others have it open.
func (c *control) close() error {
	if C.unload(&c.f) != 0 {
		return errors.New("the loader cannot close it")
	}
	return nil
}

// Reset forgets calls, planned failures, violations and programs.
func (c *control) Reset() { C.call_reset(&c.f) }

// fail makes the k-th call from now of symbol return code and do nothing else.
func (c *control) fail(symbol string, k, code int) error {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	if C.call_fail(&c.f, name, C.int(k), C.int(code)) != 0 {
		return fmt.Errorf("fail call %d of %q: no such symbol, or no such call", k, symbol)
	}
	return nil
}

// Calls counts the calls of symbol, or of all if it is empty: -1 if there is no
// such symbol.
func (c *control) Calls(symbol string) int {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	return int(C.call_calls(&c.f, name))
}

// Violations lists what a correct program would not have done, one line each.
//
// Safety: the text is from malloc, ends with a zero, and has no other owner.
func (c *control) Violations() string {
	text := C.call_violations(&c.f)
	defer C.free(unsafe.Pointer(text))
	return C.GoString(text)
}

// Live counts the programs that exist.
func (c *control) Live() int { return int(C.call_live(&c.f)) }
