package main

import (
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm"
)

// pointer is an address as PJRT takes it.
//
// Safety: it is memory of a device or of the host driver, and not Go's. The garbage collector
// leaves it alone, and Go code does not read through it.
func pointer(p vmm.Ptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }
