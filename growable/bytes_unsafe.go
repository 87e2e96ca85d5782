package growable

import (
	"fmt"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm"
)

// bytesOf returns the memory of s.
// Safety: T is plain data (check), so all of its bytes may be read and written.
func bytesOf[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), uintptr(len(s))*unsafe.Sizeof(s[0]))
}

// elements returns b as elements of T, without the bytes behind the last whole one.
// Safety: T is plain data (check), and b begins at a multiple of its alignment.
func elements[T any](b []byte) ([]T, error) {
	var zero T
	if len(b) == 0 {
		return []T{}, nil
	}
	first := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(first)%unsafe.Alignof(zero) != 0 {
		return nil, fmt.Errorf("view bytes at %p as elements: %w: they begin at no multiple of %d", first, vmm.ErrNotSupported, unsafe.Alignof(zero))
	}
	return unsafe.Slice((*T)(first), uintptr(len(b))/unsafe.Sizeof(zero)), nil
}
