//go:build cgo && linux

// Package second acts as another library in the same process: it has a context of its
// own on a device, beside the primary one, and can reset the primary one. It is for
// tests.
package second

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror -I${SRCDIR}/../../cuda
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "second.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// Context is a context with one non-blocking stream.
type Context struct{ c *C.struct_second }

// Error is a failed call.
type Error struct {
	Call   string
	Result int // CUDA's; -1 is the loader's
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s in a second context: CUDA error %d", e.Call, e.Result)
}

func result(t C.second_took) error {
	if t.call == nil {
		return nil
	}
	return &Error{C.GoString(t.call), int(t.r)}
}

// Open makes a context on device dev of the libcuda at path. The caller must
// Close it.
//
// Safety: the path is copied for C and freed here; C keeps nothing of it.
func Open(path string, dev int) (*Context, error) { return open(path, dev, 0) }

// OpenGreen makes a green context: one on some of the device's multiprocessors, as
// CUDA 12.4 and later have it. The caller must Close it.
func OpenGreen(path string, dev int) (*Context, error) { return open(path, dev, 1) }

func open(path string, dev int, green C.int) (*Context, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	c := &Context{}
	return c, result(C.second_open(&c.c, name, C.int(dev), green))
}

// Close destroys the stream and the context.
func (c *Context) Close() error { return result(C.second_close(c.c)) }

// Stream is the stream's handle.
func (c *Context) Stream() uintptr { return uintptr(C.second_stream(c.c)) }

// Wait makes later work of the stream wait until the word at p is v or more.
func (c *Context) Wait(p uint64, v uint32) error {
	return result(C.second_wait(c.c, C.CUdeviceptr(p), C.uint(v)))
}

// Fill queues n bytes, each set to pattern.
func (c *Context) Fill(p uint64, pattern byte, n uint64) error {
	return result(C.second_fill(c.c, C.CUdeviceptr(p), C.uchar(pattern), C.size_t(n)))
}

// Done reports whether all queued work has run.
func (c *Context) Done() (bool, error) {
	err := result(C.second_query(c.c))
	var e *Error
	if errors.As(err, &e) && e.Result == C.CUDA_ERROR_NOT_READY {
		return false, nil
	}
	return err == nil, err
}

// Sync waits for the stream.
func (c *Context) Sync() error { return result(C.second_sync(c.c)) }

// ResetPrimary resets the primary context of device dev, even while others use it.
//
// Safety: as Open.
func ResetPrimary(path string, dev int) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	return result(C.second_reset_primary(name, C.int(dev)))
}

// AllocPitch is the pitch that cuMemAllocPitch chooses for rows of width bytes and
// elements of that size.
//
// Safety: C keeps no pointer to the result.
func (c *Context) AllocPitch(width uint64, element int) (uint64, error) {
	var pitch C.size_t
	err := result(C.second_alloc_pitch(c.c, C.size_t(width), C.uint(element), &pitch))
	return uint64(pitch), err
}
