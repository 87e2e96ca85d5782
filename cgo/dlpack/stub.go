//go:build !cgo || !linux

package dlpack

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Tombstones is 0: there are no slots.
const Tombstones = 0

// Slot is an exported tensor. This build has none.
type Slot uintptr

// unsupported is a variable, so that compilers and vet do not see that every call fails.
var unsupported = func() error {
	return fmt.Errorf("%w: this program was built without cgo, or not for Linux", driver.ErrNotSupported)
}

// Export returns an error that Is driver.ErrNotSupported.
func Export(*Tensor) (Slot, error) { return 0, unsupported() }

// Pointer returns nil.
func (Slot) Pointer() unsafe.Pointer {
	// Safety: it points nowhere.
	return unsafe.Pointer(nil)
}

// Claim returns false.
func (Slot) Claim() bool { return false }

// Deleted returns nothing.
func Deleted() []Slot { return nil }

// Free does nothing.
func Free([]Slot) {}

// Repeated returns 0.
func Repeated() uint64 { return 0 }

// Supported returns an error that Is driver.ErrNotSupported.
func Supported() error { return unsupported() }

// Events returns an error that Is driver.ErrNotSupported.
func Events() (*os.File, error) { return nil, unsupported() }

// Wake does nothing.
func Wake() {}

// Read reads nothing: its tensor is of version 0.
func Read(unsafe.Pointer, bool) Tensor { return Tensor{} }

// Delete does nothing.
func Delete(unsafe.Pointer, bool) {}
