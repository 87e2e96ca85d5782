//go:build cgo && linux

package fakelib

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// Go cannot call a function pointer of C.
static void call_reset(void *f) { ((void (*)(void))f)(); }
static int call_fail(void *f, const char *symbol, int k, int code) { return ((int (*)(const char *, int, int))f)(symbol, k, code); }
static long long call_calls(void *f, const char *symbol) { return ((long long (*)(const char *))f)(symbol); }
static char *call_violations(void *f) { return ((char *(*)(void))f)(); }
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// control calls the control functions of one loaded library.
type control struct{ library unsafe.Pointer }

// openControl loads the library at path. One that is loaded already is the same
// one. The caller must close it.
//
// Safety: C does not keep the name.
func openControl(path string) (control, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	// The loader's text belongs to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	library := C.dlopen(name, C.RTLD_NOW|C.RTLD_LOCAL)
	if library == nil {
		return control{}, errors.New(C.GoString(C.dlerror()))
	}
	return control{library}, nil
}

// close unloads the library, which stays as long as others have it open.
func (c control) close() error {
	if C.dlclose(c.library) != 0 {
		return errors.New("the loader cannot close it")
	}
	return nil
}

// Function is the address of fake_ and name in the library, and nil if there is none.
//
// Safety: the caller calls it with its C type, while the library is open.
func (c control) Function(name string) unsafe.Pointer {
	symbol := C.CString("fake_" + name)
	defer C.free(unsafe.Pointer(symbol))
	return C.dlsym(c.library, symbol)
}

// Reset forgets calls, planned failures, violations and all that was made.
func (c control) Reset() { C.call_reset(c.Function("reset")) }

// TryFail is Library.Fail, which returns an error if there is no such symbol or call.
func (c control) TryFail(symbol string, k, code int) error {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	if C.call_fail(c.Function("fail"), name, C.int(k), C.int(code)) != 0 {
		return fmt.Errorf("fail call %d of %q: no such symbol, or no such call", k, symbol)
	}
	return nil
}

// Calls counts the calls of symbol, or of all if it is empty: -1 if there is no
// such symbol.
func (c control) Calls(symbol string) int {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	return int(C.call_calls(c.Function("calls"), name))
}

// Violations lists what a correct program would not have done, one line each.
func (c control) Violations() string {
	return Text(unsafe.Pointer(C.call_violations(c.Function("violations"))))
}

// Text copies a text of a library's and frees it.
//
// Safety: the text is from malloc, ends with a zero, and has no other owner.
func Text(text unsafe.Pointer) string {
	defer C.free(text)
	return C.GoString((*C.char)(text))
}
