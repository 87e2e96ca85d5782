package dlpack

import (
	"fmt"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm"
)

// HandOver returns the struct, for a consumer that calls its deleter once: from any thread, in a callback
// of a stream, or never: then the memory stays held. It is a DLManagedTensorVersioned, or with Options.Unversioned a DLManagedTensor.
// The deleter returns at once, and the hold is dropped soon after: see Released. A second HandOver, and one
// after Close, is vmm.ErrClosed.
func (t *Tensor) HandOver() (unsafe.Pointer, error) {
	if !t.take() {
		return nil, fmt.Errorf("hand over %v: %w: it was handed over or closed", t, vmm.ErrClosed)
	}
	// Safety: the struct is C's memory, which the table of package cgo/dlpack never frees.
	return t.slot.Pointer(), nil
}

// addressOf is where a mirror's bytes are; 0 if there are none.
func addressOf(b []byte) vmm.Ptr {
	// Safety: they are not the collector's, and are used only while the mirror is held.
	return vmm.Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
