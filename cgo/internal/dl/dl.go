//go:build cgo && linux

// Package dl opens shared libraries at run time and finds their symbols: dl.go does both, and
// find.go opens the first of several names, whose lists the bindings have, and says in an error
// which of them exist. Where a name without a slash is looked for is the system's loader to decide.
package dl

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "dl.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Library is an open shared library.
// Safety: handle is the loader's and is only ever handed back to it.
type Library struct {
	path   string
	handle unsafe.Pointer
}

// Open loads a library and all it needs. The error is a *driver.CallError with the loader's
// text. Its kind is absent if there is no such file for this processor, and else driver.ErrNotSupported.
func Open(path string, absent error) (*Library, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	// The loader's text belongs to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h := C.dlopen(name, C.RTLD_NOW|C.RTLD_LOCAL)
	if h == nil {
		call := &driver.CallError{Call: "open " + path, Kind: driver.ErrNotSupported, Err: loaderError()}
		if there, foreign := look(path); !there {
			call.Kind = absent
			if foreign != "" { // the loader says that there is no such file
				call.Err = errors.New(foreign)
			}
		}
		return nil, call
	}
	return &Library{path, h}, nil
}

// Bind writes the addresses of the library's symbols into api, nil for what it does not have.
// It returns the first required symbol that is missing, and else "".
//
// Safety: symbols is a table of struct cuvmm_symbol, whose offsets are of fields of api.
func (l *Library) Bind(symbols, api unsafe.Pointer) (missing string) {
	return C.GoString(C.cuvmm_bind(l.handle, (*C.struct_cuvmm_symbol)(symbols), api))
}

// TooOld unloads a library that lacks a symbol, unless something else has it open, and returns
// the error. None of its functions may have been called.
func (l *Library) TooOld(what, missing string) error {
	C.dlclose(l.handle)
	return &driver.CallError{Call: "open " + l.path, Kind: driver.ErrNotSupported,
		Err: fmt.Errorf("%s is too old: it has no %s", what, missing)}
}

// loaderError is the loader's text about the last call.
func loaderError() error {
	if s := C.dlerror(); s != nil {
		return errors.New(C.GoString(s))
	}
	return errors.New("the loader gave no reason")
}
