//go:build cgo && linux

package consumer

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror
#cgo LDFLAGS: -lpthread
#include <stdlib.h>
#include "consumer.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// Pointer is for tests in files that do not import unsafe.
type Pointer = unsafe.Pointer

// Tensor is the fields of a DLTensor, and those around it.
type Tensor struct {
	Major, Minor uint32
	Flags        uint64
	Data         uintptr
	Type, ID     int32
	Code, Bits   uint8
	Lanes        uint16
	Shape        []int64
	Strides      []int64
	ByteOffset   uint64
}

// Read reads a struct.
func Read(p unsafe.Pointer, versioned bool) (t Tensor) {
	// Safety: p is a struct of C's memory that was not deleted.
	d := &(*C.DLManagedTensor)(p).dl_tensor
	if versioned {
		v := (*C.DLManagedTensorVersioned)(p)
		t.Major, t.Minor, t.Flags = uint32(v.version.major), uint32(v.version.minor), uint64(v.flags)
		d = &v.dl_tensor
	}
	t.Data, t.ByteOffset = uintptr(d.data), uint64(d.byte_offset)
	t.Type, t.ID = int32(d.device.device_type), int32(d.device.device_id)
	t.Code, t.Bits, t.Lanes = uint8(d.dtype.code), uint8(d.dtype.bits), uint16(d.dtype.lanes)
	for i := range int(d.ndim) {
		t.Shape = append(t.Shape, int64(unsafe.Slice(d.shape, d.ndim)[i]))
		t.Strides = append(t.Strides, int64(unsafe.Slice(d.strides, d.ndim)[i]))
	}
	return t
}

// Sum adds up the bytes of a tensor on the host, in several threads that must see the same.
func Sum(p unsafe.Pointer, versioned bool, threads int) int64 {
	return int64(C.sum(p, cbool(versioned), C.int(threads)))
}

// Delete calls the deleter of each tensor, in several threads, so many times.
func Delete(all []unsafe.Pointer, versioned bool, threads, times int) error {
	if len(all) == 0 {
		return nil
	}
	// The array is C's, since Go's memory must not hold what threads of C go on reading.
	list := (*unsafe.Pointer)(C.malloc(C.size_t(len(all)) * C.size_t(unsafe.Sizeof(all[0]))))
	defer C.free(unsafe.Pointer(list))
	copy(unsafe.Slice(list, len(all)), all)
	if C.delete_all(list, cbool(versioned), C.int(len(all)), C.int(threads), C.int(times)) != 0 {
		return errors.New("no thread")
	}
	return nil
}

// DeleteCancelled calls the deleter of a tensor in a thread that was cancelled.
func DeleteCancelled(p unsafe.Pointer, versioned bool) error {
	if C.delete_cancelled(p, cbool(versioned)) == 0 {
		return errors.New("no thread was cancelled")
	}
	return nil
}

// ErrDeleter is what a deleter panics with.
var ErrDeleter = errors.New("a deleter panics")

//export deleterPanics
func deleterPanics(made unsafe.Pointer) {
	(*C.struct_made)(made).deletes++
	panic(ErrDeleter) //nolint:forbidigo // it is what the test is about
}

// Made is a tensor of this library: 4 rows of 3 float32, with a deleter that counts.
type Made struct {
	m         *C.struct_made
	versioned bool
}

// Make makes a tensor.
func Make(versioned bool) Made { return Made{C.make_tensor(cbool(versioned)), versioned} }

// Pointer is the struct.
func (m Made) Pointer() unsafe.Pointer { return unsafe.Pointer(m.m) }

// Deletes is how often the deleter was called.
func (m Made) Deletes() int { return int(m.m.deletes) }

// Free frees the tensor.
func (m Made) Free() { C.free(unsafe.Pointer(m.m)) }

// Spec is what a test spoils.
type Spec struct {
	Major              uint32
	Flags              uint64
	NoData             bool
	Offset             uint64
	Type, ID           int32
	Code, Bits         uint8
	Lanes              uint16
	NDim               int32
	Shape, Strides     []int64
	NoShape, NoStrides bool
	NoDeleter          bool
	Panics             bool // the deleter
	DataOff            uintptr
}

// Good is the Spec of Make.
func Good() Spec {
	return Spec{Major: 1, Type: 1, Code: 2, Bits: 32, Lanes: 1, NDim: 2, Shape: []int64{4, 3}, Strides: []int64{3, 1}}
}

// Set makes the tensor what s says.
func (m Made) Set(s Spec) {
	// Safety: the tensor is C's memory, which only the test has.
	t := C.tensor_of(m.m, cbool(m.versioned))
	if m.versioned {
		v := (*C.DLManagedTensorVersioned)(m.Pointer())
		v.version.major, v.flags = C.uint32_t(s.Major), C.uint64_t(s.Flags)
	}
	t.data = unsafe.Add(t.data, s.DataOff)
	if s.NoData {
		t.data = nil
	}
	t.byte_offset = C.uint64_t(s.Offset)
	t.device.device_type, t.device.device_id = C.int32_t(s.Type), C.int32_t(s.ID)
	t.dtype.code, t.dtype.bits, t.dtype.lanes = C.uint8_t(s.Code), C.uint8_t(s.Bits), C.uint16_t(s.Lanes)
	t.ndim = C.int32_t(s.NDim)
	for i, n := range s.Shape {
		m.m.shape[i] = C.int64_t(n)
	}
	for i, n := range s.Strides {
		m.m.strides[i] = C.int64_t(n)
	}
	if s.NoShape {
		t.shape = nil
	}
	if s.NoStrides {
		t.strides = nil
	}
	if s.Panics {
		C.set_panicking(m.m, cbool(m.versioned))
	}
	if s.NoDeleter {
		C.drop_deleter(m.m, cbool(m.versioned))
	}
}

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
