//go:build cgo && linux

// Package nccloop makes NCCL's calls as a C program would, on memory of cuMemAlloc, and times
// them in C. It is for tests: package collective is compared with it. A failed call undoes
// nothing; the test fails.
package nccloop

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "nccloop.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"
)

// Op is what a loop does again and again.
type Op uint32

// Operations, of as many bytes as each rank sends.
const (
	AllReduce     Op = C.NCCLOOP_ALL_REDUCE // the sum of float32
	AllGather     Op = C.NCCLOOP_ALL_GATHER
	SendRecv      Op = C.NCCLOOP_SEND_RECV // to the next rank, from the one before
	GatherUnequal Op = C.NCCLOOP_GATHER_UNEQUAL
)

// Way is the kind of communicator that a loop's calls are made with.
type Way uint32

// Kinds of communicator.
const (
	Blocking    Way = C.NCCLOOP_BLOCKING
	Nonblocking Way = C.NCCLOOP_NONBLOCKING // each call is asked for until it is done
	Child       Way = C.NCCLOOP_CHILD       // blocks, and shares the resources of a parent that does not
)

// Loop is one member of a group.
type Loop struct{ c *C.struct_nccloop }

func timed(t C.nccloop_took) (time.Duration, error) {
	if t.call != nil {
		return 0, fmt.Errorf("%s, called from C: error %d", C.GoString(t.call), int(t.r))
	}
	return time.Duration(t.ns), nil
}

// NewID makes the identity of a group.
//
// Safety: C writes to id during the call only.
func NewID(nccl string) (id [128]byte, err error) {
	name := C.CString(nccl)
	defer C.free(unsafe.Pointer(name))
	_, err = timed(C.nccloop_id(name, (*C.char)(unsafe.Pointer(&id[0]))))
	return id, err
}

// Open joins a group and makes two buffers of so many bytes. The caller must Close it.
//
// Safety: C keeps none of what it is passed.
func Open(cuda, nccl string, dev int, id [128]byte, rank, size int, way Way, bytes uint64) (*Loop, error) {
	a, b := C.CString(cuda), C.CString(nccl)
	defer C.free(unsafe.Pointer(a))
	defer C.free(unsafe.Pointer(b))
	runtime.LockOSThread() // the context is the thread's
	defer runtime.UnlockOSThread()
	l := &Loop{}
	_, err := timed(C.nccloop_open(&l.c, a, b, C.int(dev), (*C.char)(unsafe.Pointer(&id[0])), C.int(rank), C.int(size), uint32(way), C.size_t(bytes)))
	return l, err
}

// Close leaves the group.
func (l *Loop) Close() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, err := timed(C.nccloop_close(l.c))
	return err
}

// Begin makes one small call and does not wait for it.
func (l *Loop) Begin() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, err := timed(C.nccloop_begin(l.c))
	return err
}

// Abort leaves a group that has lost a member, and ends the call that was begun.
func (l *Loop) Abort() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, err := timed(C.nccloop_abort(l.c))
	return err
}

// Run makes n calls and waits for them; bytes has what each rank sends.
func (l *Loop) Run(op Op, bytes []uint64, n int) (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return timed(C.nccloop_run(l.c, uint32(op), sizes(bytes), C.int(n)))
}

// Queue makes n calls, whose time it returns, and waits for them.
func (l *Loop) Queue(op Op, bytes []uint64, n int) (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return timed(C.nccloop_queue(l.c, uint32(op), sizes(bytes), C.int(n)))
}

// Use has the calls use other memory than the loop's own; of 0 its own again.
func (l *Loop) Use(from, to uint64) { C.nccloop_use(l.c, C.ulonglong(from), C.ulonglong(to)) }

// Watch has an event recorded before and after each call, or not.
func (l *Loop) Watch(on bool) {
	var watched C.int
	if on {
		watched = 1
	}
	C.nccloop_watch(l.c, watched)
}

// sizes is bytes for C, for one call. They have the same size, without pointers.
func sizes(bytes []uint64) *C.size_t { return (*C.size_t)(unsafe.Pointer(&bytes[0])) }
