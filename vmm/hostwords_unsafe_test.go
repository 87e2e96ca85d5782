package vmm_test

import "unsafe"

// hostWords is n words of the host driver's memory.
// Safety: the memory is not Go's, and a launch keeps it mapped.
func hostWords(p, n uint64) []uint32 {
	return unsafe.Slice((*uint32)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}
