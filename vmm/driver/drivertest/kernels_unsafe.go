package drivertest

import (
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// addTo adds v to each of n words at p.
//
// Safety: p is an address of the host driver, outside Go's heap. A rule launches this on
// memory that it maps until the launch has run.
func addTo(p driver.Ptr, n uint64, v uint32) {
	words := unsafe.Slice((*uint32)(pointer(p)), int(n))
	for i := range words {
		words[i] += v
	}
}

// storeTo stores v at p.
//
// Safety: as addTo, or nothing is mapped at p: the driver recovers that fault.
func storeTo(p driver.Ptr, v uint32) { *(*uint32)(pointer(p)) = v }

// pointer makes a pointer of an address.
//
// Safety: neither the garbage collector nor checkptr looks at addresses outside Go's
// heap.
func pointer(p driver.Ptr) unsafe.Pointer {
	u := uintptr(p)
	return *(*unsafe.Pointer)(unsafe.Pointer(&u))
}
