package poolmem

import (
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm"
)

// bytesAt is n bytes of host memory.
//
// Safety: p is the beginning of an allocated block of at least n bytes, on a device whose
// memory the CPU can address. The memory is not Go's: it does not move, and the garbage
// collector leaves it alone. Arrow keeps no pointers in it.
func bytesAt(p vmm.Ptr, n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

// addressOf is where b begins, also if it has no bytes.
func addressOf(b []byte) vmm.Ptr { return vmm.Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
