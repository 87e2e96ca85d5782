//go:build cgo && linux

package dlpack

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror
#cgo noescape cuvmm_dl_export
#cgo nocallback cuvmm_dl_export
#cgo nocallback cuvmm_dl_claim
#cgo nocallback cuvmm_dl_next
#include "dlpack.h"
*/
import "C"

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Tombstones is how many freed slots are kept before the oldest is reused. Until then a second call of its
// deleter is detected and ignored.
const Tombstones = 1024

// Slot is an exported tensor, by the address of its struct.
type Slot uintptr

// table is the slots that no tensor has, and the file of Events.
var table struct {
	mu     sync.Mutex
	freed  []Slot // the one freed first at first
	events *os.File
}

// Export makes the struct, which has a version if t has one. Its deleter makes Deleted return it.
func Export(t *Tensor) (Slot, error) {
	if len(t.Shape) > MostDims || len(t.Shape) != len(t.Strides) {
		return 0, fmt.Errorf("%w: %d dimensions, of at most %d", driver.ErrInvalid, len(t.Shape), MostDims)
	}
	s, err := takeSlot()
	if err != nil {
		return 0, err
	}
	info := C.struct_cuvmm_dl_info{
		major:       C.uint32_t(t.Major),
		minor:       C.uint32_t(t.Minor),
		flags:       C.uint64_t(t.Flags),
		data:        C.uint64_t(t.Data),
		device_type: C.int32_t(t.Type),
		device_id:   C.int32_t(t.ID),
		ndim:        C.int32_t(len(t.Shape)),
		code:        C.uint8_t(t.Code),
		bits:        C.uint8_t(t.Bits),
		lanes:       C.uint16_t(t.Lanes),
	}
	for i, n := range t.Shape {
		info.shape[i], info.strides[i] = C.int64_t(n), C.int64_t(t.Strides[i])
	}
	C.cuvmm_dl_export(s.c(), &info)
	return s, nil
}

func takeSlot() (Slot, error) {
	table.mu.Lock()
	defer table.mu.Unlock()
	if len(table.freed) > Tombstones {
		s := table.freed[0]
		table.freed = table.freed[1:]
		return s, nil
	}
	s := C.cuvmm_dl_new_slot()
	if s == nil {
		return 0, fmt.Errorf("%w: for DLPack's structs", driver.ErrOutOfMemory)
	}
	// Safety: the slots are C's memory, so their addresses are kept as numbers.
	return Slot(unsafe.Pointer(s)), nil
}

func freeSlots(all ...Slot) {
	table.mu.Lock()
	defer table.mu.Unlock()
	table.freed = append(table.freed, all...)
}

func (s Slot) c() *C.struct_cuvmm_dl_slot {
	return (*C.struct_cuvmm_dl_slot)(s.Pointer())
}

// Pointer is the struct, in C's memory.
func (s Slot) Pointer() unsafe.Pointer {
	// Safety: a slot is C's memory, which is never freed and which the collector does not move.
	return *(*unsafe.Pointer)(unsafe.Pointer(&s))
}

// Claim takes a tensor back whose deleter was not called: it reports whether it has.
func (s Slot) Claim() bool {
	if C.cuvmm_dl_claim(s.c()) == 0 {
		return false
	}
	freeSlots(s)
	return true
}

// Deleted returns the tensors whose deleters were called since the last call.
func Deleted() (all []Slot) {
	for s := C.cuvmm_dl_deleted(); s != nil; {
		// Safety: the slots are C's memory, so their addresses are kept as numbers.
		all = append(all, Slot(unsafe.Pointer(s)))
		s = C.cuvmm_dl_next(s)
	}
	return all
}

// Free lets the slots of Deleted be used again. The caller has forgotten them.
func Free(all []Slot) { freeSlots(all...) }

// Repeated is how often a deleter was called again.
func Repeated() uint64 { return uint64(C.cuvmm_dl_repeated()) }

// Supported is nil: this build has DLPack.
func Supported() error { return nil }

// Events is the file that can be read once a deleter or Wake was called. It is opened once, and stays
// open.
func Events() (*os.File, error) {
	table.mu.Lock()
	defer table.mu.Unlock()
	if table.events == nil {
		fd, err := C.cuvmm_dl_open()
		if fd < 0 {
			return nil, fmt.Errorf("%w: an event descriptor for DLPack: %w", driver.ErrLimit, err)
		}
		table.events = os.NewFile(uintptr(fd), "DLPack's deleters")
	}
	return table.events, nil
}

// Wake makes Events readable.
func Wake() { C.cuvmm_dl_wake() }

// Read reads a struct of another library. Of another major version than 1 it reads the version alone.
//
// Safety: the caller promises that p is such a struct. Of its arrays as many numbers are read as it has dimensions, and
// none if there are too many.
func Read(p unsafe.Pointer, versioned bool) (t Tensor) {
	d := &(*C.struct_cuvmm_dl_managed)(p).tensor
	if versioned {
		v := (*C.struct_cuvmm_dl_versioned)(p)
		t.Major, t.Minor = uint32(v.major), uint32(v.minor)
		if t.Major != Major {
			return t
		}
		t.Flags, d = uint64(v.flags), &v.tensor
	}
	// The address may be any number, so it is never a pointer of Go's.
	t.Data, t.ByteOffset = *(*uint64)(unsafe.Pointer(&d.data)), uint64(d.byte_offset)
	t.Type, t.ID = DeviceType(d.device_type), int32(d.device_id)
	t.Code, t.Bits, t.Lanes, t.NDim = uint8(d.code), uint8(d.bits), uint16(d.lanes), int(d.ndim)
	if t.NDim >= 1 && t.NDim <= MostDimsIn {
		t.Shape, t.Strides = numbers(d.shape, t.NDim), numbers(d.strides, t.NDim)
	}
	return t
}

// numbers are n numbers of C; nil for NULL.
func numbers(p *C.int64_t, n int) (list []int64) {
	if p == nil {
		return nil
	}
	for _, x := range unsafe.Slice(p, n) {
		list = append(list, int64(x))
	}
	return list
}

// Delete calls the struct's deleter, if it has one.
func Delete(p unsafe.Pointer, versioned bool) { C.cuvmm_dl_delete(p, cbool(versioned)) }

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
