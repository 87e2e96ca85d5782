//go:build cgo && linux

package cloop

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror -I${SRCDIR}/../../cuda
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "cloop.h"
*/
import "C"

import (
	"fmt"
	"time"
	"unsafe"
)

// Loop is libcuda and one of its devices.
type Loop struct{ c *C.struct_cloop }

// Open opens the libcuda at path. One that is loaded already is the same one.
// The caller must Close it.
//
// Safety: the path is copied for C and freed here; C keeps nothing of it.
func Open(path string, dev int) (*Loop, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	l := &Loop{}
	_, err := result(C.cloop_open(&l.c, name, C.int(dev)))
	return l, err
}

// result is the value or the error of a call.
func result(t C.cloop_took) (uint64, error) {
	if t.call != nil {
		return 0, fmt.Errorf("%s, called from C: CUDA error %d", C.GoString(t.call), int(t.r))
	}
	return uint64(t.v), nil
}

// failure is result for functions without a value.
func failure(t C.cloop_took) error {
	_, err := result(t)
	return err
}

// timed is result for functions that time their calls.
func timed(t C.cloop_took) (time.Duration, error) {
	_, err := result(t)
	return time.Duration(t.ns), err
}

// Close releases the context.
func (l *Loop) Close() error {
	return failure(C.cloop_close(l.c))
}

// Reserve reserves addresses.
func (l *Loop) Reserve(size, align uint64) (uint64, error) {
	return result(C.cloop_reserve(l.c, C.size_t(size), C.size_t(align)))
}

// Free frees addresses.
func (l *Loop) Free(p, size uint64) error {
	return failure(C.cloop_address_free(l.c, C.CUdeviceptr(p), C.size_t(size)))
}

// Create allocates physical memory.
func (l *Loop) Create(size uint64) (uint64, error) {
	return result(C.cloop_create(l.c, C.size_t(size)))
}

// CreateShared is Create of memory that can be exported.
func (l *Loop) CreateShared(size uint64) (uint64, error) {
	return result(C.cloop_create_shared(l.c, C.size_t(size)))
}

// Export returns a descriptor of memory, which the caller must close.
func (l *Loop) Export(h uint64) (fd int, err error) {
	v, err := result(C.cloop_export(l.c, C.CUmemGenericAllocationHandle(h)))
	return int(v), err
}

// Release frees physical memory.
func (l *Loop) Release(h uint64) error {
	return failure(C.cloop_release(l.c, C.CUmemGenericAllocationHandle(h)))
}

// Unmap removes whole mappings and waits for nothing.
func (l *Loop) Unmap(p, size uint64) error {
	return failure(C.cloop_unmap(l.c, C.CUdeviceptr(p), C.size_t(size)))
}

// RangeStart is where the memory of p begins, as other libraries ask for it.
func (l *Loop) RangeStart(p uint64) (uint64, error) {
	return result(C.cloop_range_start(l.c, C.CUdeviceptr(p)))
}

// SetPoolThreshold sets how much memory the device's default pool keeps.
func (l *Loop) SetPoolThreshold(n uint64) error {
	return failure(C.cloop_threshold(l.c, C.ulonglong(n)))
}

// Map maps h at p and gives the device access: what is timed is cuMemMap and
// cuMemSetAccess.
func (l *Loop) Map(p, size, h uint64) (time.Duration, error) {
	return timed(C.cloop_map(l.c, C.CUdeviceptr(p), C.size_t(size), C.CUmemGenericAllocationHandle(h)))
}

// Grow puts new memory at p, in steps of the given chunks: what is timed is
// cuMemCreate and cuMemMap for each chunk and one cuMemSetAccess for each step.
func (l *Loop) Grow(p uint64, steps [][]uint64) (handles []uint64, took time.Duration, err error) {
	for _, chunks := range steps {
		handles = append(handles, make([]uint64, len(chunks))...)
	}
	took, err = l.grow(p, steps, handles, 0)
	return handles, took, err
}

// Regrow is Grow with the memory of handles, one for each chunk, which is not
// mapped: what is timed is cuMemMap and cuMemSetAccess.
func (l *Loop) Regrow(p uint64, steps [][]uint64, handles []uint64) (time.Duration, error) {
	return l.grow(p, steps, handles, 1)
}

// grow is Grow into handles, or Regrow from them.
//
// Safety: the slices are as long as the counts say, hold no pointers, and C
// keeps none of them.
func (l *Loop) grow(p uint64, steps [][]uint64, handles []uint64, kept C.int) (time.Duration, error) {
	var sizes []uint64
	counts := make([]C.int, len(steps))
	for i, chunks := range steps {
		sizes = append(sizes, chunks...)
		counts[i] = C.int(len(chunks))
	}
	if len(handles) != len(sizes) {
		return 0, fmt.Errorf("%d handles for %d chunks", len(handles), len(sizes))
	}
	return timed(C.cloop_grow(l.c, C.CUdeviceptr(p), numbers(sizes), unsafe.SliceData(counts), C.int(len(counts)), numbers(handles), kept))
}

// Attach maps at p the memory that descriptors are of: what is timed is
// cuMemImportFromShareableHandle and cuMemMap for each and one cuMemSetAccess.
func (l *Loop) Attach(p uint64, sizes []uint64, fds []int) (handles []uint64, took time.Duration, err error) {
	numbers := make([]C.int, len(fds))
	for i, fd := range fds {
		numbers[i] = C.int(fd)
	}
	return l.attach(p, sizes, numbers, nil)
}

// ExportAndAttach is Attach that exports the memory of handles first, timed with
// closing the descriptors.
func (l *Loop) ExportAndAttach(p uint64, sizes, shared []uint64) (handles []uint64, took time.Duration, err error) {
	return l.attach(p, sizes, nil, shared)
}

// attach is Attach to fds, or ExportAndAttach to what is shared.
//
// Safety: the slices have an entry for each size, hold no pointers, and C keeps
// none of them.
func (l *Loop) attach(p uint64, sizes []uint64, fds []C.int, shared []uint64) (handles []uint64, took time.Duration, err error) {
	if max(len(fds), len(shared)) != len(sizes) {
		return nil, 0, fmt.Errorf("%d descriptors or %d handles for %d chunks", len(fds), len(shared), len(sizes))
	}
	handles = make([]uint64, len(sizes))
	took, err = timed(C.cloop_attach(l.c, C.CUdeviceptr(p), numbers(sizes), C.int(len(sizes)), unsafe.SliceData(fds), numbers(shared), numbers(handles)))
	return handles, took, err
}

// Realloc grows memory the usual way: for each size it allocates, copies the bytes of
// the last step and frees that. With pool it uses the device's default pool, else
// cuMemAlloc and cuMemFree. All of it is timed except the last free.
func (l *Loop) Realloc(sizes []uint64, pool bool) (time.Duration, error) {
	var kind C.int
	if pool {
		kind = 1
	}
	return timed(C.cloop_realloc(l.c, numbers(sizes), C.int(len(sizes)), kind))
}

// Expand appends bytes as programs do whose memory cannot grow: it allocates old bytes and as many as more
// has, copies what is at p and then more to them, and frees the memory at p. All of it is timed. It returns the new
// memory, which FreePlain frees.
//
// Safety: more has no pointers, and the driver has read it when the call returns.
func (l *Loop) Expand(p, old uint64, more []byte) (uint64, time.Duration, error) {
	at := C.ulonglong(p)
	took, err := timed(C.cloop_expand(l.c, &at, C.size_t(old), unsafe.Pointer(unsafe.SliceData(more)), C.size_t(len(more))))
	return uint64(at), took, err
}

// FreePlain frees memory of Expand.
func (l *Loop) FreePlain(p uint64) error {
	return failure(C.cloop_plain_free(l.c, C.CUdeviceptr(p)))
}

// PoolPairs frees the block in a slot of live, if it is not 0, and puts a new one there, for
// each of slots, with the size beside it. The blocks are of the device's default pool. All
// of it is timed. PoolFree frees what is left.
//
// Safety: the slices hold no pointers, the slots are checked here, and C keeps none of them.
func (l *Loop) PoolPairs(sizes []uint64, slots []uint32, live []uint64) (time.Duration, error) {
	if len(sizes) != len(slots) {
		return 0, fmt.Errorf("%d sizes for %d slots", len(sizes), len(slots))
	}
	for _, i := range slots {
		if int(i) >= len(live) {
			return 0, fmt.Errorf("slot %d of %d", i, len(live))
		}
	}
	return timed(C.cloop_pool_pairs(l.c, numbers(sizes), (*C.uint)(unsafe.SliceData(slots)), C.int(len(slots)), numbers(live)))
}

// PoolFree frees the blocks that PoolPairs has left, and waits.
func (l *Loop) PoolFree(live []uint64) error {
	return failure(C.cloop_pool_free(l.c, numbers(live), C.int(len(live))))
}

// Launch launches a kernel n times, one launch after the other, each with its own push
// and pop of the context. All of it is timed. args is the packed parameters.
//
// Safety: the handle is libcuda's, and the driver has copied args when a launch returns.
func (l *Loop) Launch(f uint64, grid, block uint32, args []byte, n int) (time.Duration, error) {
	handle := *(*unsafe.Pointer)(unsafe.Pointer(&f))
	return timed(C.cloop_launch(l.c, C.CUfunction(handle), C.uint(grid), C.uint(block),
		(*C.uchar)(unsafe.Pointer(unsafe.SliceData(args))), C.size_t(len(args)), C.int(n)))
}

// LaunchOne launches once, and nothing is timed: with a crossing from Go for each launch,
// it is the least that Go can do.
//
// Safety: as for Launch.
func (l *Loop) LaunchOne(f uint64, grid, block uint32, args []byte) error {
	handle := *(*unsafe.Pointer)(unsafe.Pointer(&f))
	if r := C.cloop_launch_one(l.c, C.CUfunction(handle), C.uint(grid), C.uint(block),
		(*C.uchar)(unsafe.SliceData(args)), C.size_t(len(args))); r != 0 {
		return fmt.Errorf("launch: CUDA error %d", int(r))
	}
	return nil
}

// Sync waits for the launches.
func (l *Loop) Sync() error {
	return failure(C.cloop_sync(l.c))
}

// numbers is a slice as C wants it.
// Safety: both are 64 bits without a sign.
func numbers(s []uint64) *C.ulonglong { return (*C.ulonglong)(unsafe.Pointer(unsafe.SliceData(s))) }

// Download copies device memory into new memory of the host by several threads.
func (l *Loop) Download(src, size uint64, threads int) (time.Duration, error) {
	return timed(C.cloop_download(l.c, C.CUdeviceptr(src), C.size_t(size), C.int(threads)))
}

// Upload copies memory of the host to the device by several threads.
func (l *Loop) Upload(dst, size uint64, threads int) (time.Duration, error) {
	return timed(C.cloop_upload(l.c, C.CUdeviceptr(dst), C.size_t(size), C.int(threads)))
}
