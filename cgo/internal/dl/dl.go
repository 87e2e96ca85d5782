//go:build cgo && linux

// Package dl opens shared libraries at run time.
package dl

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"runtime"
	"unsafe"
)

// Library is an open shared library.
// Safety: handle is the loader's and is only ever handed back to it.
type Library struct{ handle unsafe.Pointer }

// Open loads a library and all it needs. The error has the loader's text.
func Open(path string) (*Library, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	// The loader's text belongs to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h := C.dlopen(name, C.RTLD_NOW|C.RTLD_LOCAL)
	if h == nil {
		return nil, loaderError()
	}
	return &Library{h}, nil
}

// Sym finds a symbol's address.
func (l *Library) Sym(name string) (unsafe.Pointer, error) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := C.dlsym(l.handle, c)
	if p == nil {
		return nil, loaderError()
	}
	return p, nil
}

// Close unloads the library if nothing else has it open.
func (l *Library) Close() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if C.dlclose(l.handle) != 0 {
		return loaderError()
	}
	return nil
}

// loaderError is the loader's text about the last call.
func loaderError() error {
	if s := C.dlerror(); s != nil {
		return errors.New(C.GoString(s))
	}
	return errors.New("the loader gave no reason")
}
