//go:build cgo && linux

package fakenccl

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
	char *(*log)(void);
	void (*polls)(int n);
	int (*kill)(int rank, int code);
	int (*live)(int what);
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
	FIND(log);
	FIND(polls);
	FIND(kill);
	FIND(live);
	return NULL;
}

static int unload(const struct functions *f) { return dlclose(f->library); }

// Go cannot call a function pointer of C.
static void call_reset(const struct functions *f) { f->reset(); }
static int call_fail(const struct functions *f, const char *symbol, int k, int code) { return f->fail(symbol, k, code); }
static long long call_calls(const struct functions *f, const char *symbol) { return f->calls(symbol); }
static char *call_violations(const struct functions *f) { return f->violations(); }
static char *call_log(const struct functions *f) { return f->log(); }
static void call_polls(const struct functions *f, int n) { f->polls(n); }
static int call_kill(const struct functions *f, int rank, int code) { return f->kill(rank, code); }
static int call_live(const struct functions *f, int what) { return f->live(what); }
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

// Reset forgets calls, planned failures, violations, the log and communicators.
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

// Polls makes all that is begun from now on stay in progress for n polls, and with -1 for
// ever.
func (c *control) Polls(n int) { C.call_polls(&c.f, C.int(n)) }

// Kill ends a rank of every group, as if its process had ended. The others get that
// asynchronous error; with 0 they get none, and what they begin counts as queued. It returns
// how many it has ended.
func (c *control) Kill(rank, code int) int { return int(C.call_kill(&c.f, C.int(rank), C.int(code))) }

// Violations lists what a correct program would not have done, one line each.
func (c *control) Violations() string { return take(C.call_violations(&c.f)) }

// Log lists the calls of communicators with their arguments, one line each.
func (c *control) Log() string { return take(C.call_log(&c.f)) }

// take frees a text.
//
// Safety: the text is from malloc, ends with a zero, and has no other owner.
func take(text *C.char) string {
	defer C.free(unsafe.Pointer(text))
	return C.GoString(text)
}

// Live counts what exists.
func (c *control) Live() Live {
	return Live{
		Comms:         int(C.call_live(&c.f, 0)),
		Registrations: int(C.call_live(&c.f, 1)),
		Windows:       int(C.call_live(&c.f, 2)),
		Waiting:       int(C.call_live(&c.f, 3)),
	}
}
