package dlpack

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/cuvmm/cuvmm/cgo/dlpack"
	"github.com/cuvmm/cuvmm/vmm"
)

// FromDLPack takes over a tensor of another library, a DLManagedTensorVersioned, for use on d. The
// library's deleter is called once: by Close, or before FromDLPack returns an error. A tensor without a
// deleter is fine, and so is one without strides.
//
//	ErrInvalid       no tensor, no device; memory of another GPU; no data for elements; elements that are not aligned
//	ErrBounds        addresses that overflow
//	ErrNotSupported  another major version than 1, of which FromDLPack reads nothing; other types of
//	                 element and of device than Export has; strides by which rows overlap or are not
//	                 compact; a build without cgo, or not for Linux
//
// It waits for nothing: wait for the library's stream first. The caller must Close the Foreign.
func FromDLPack(d *vmm.Device, p unsafe.Pointer) (*Foreign, error) { return from(d, p, true) }

// FromUnversioned is FromDLPack of a DLManagedTensor.
func FromUnversioned(d *vmm.Device, p unsafe.Pointer) (*Foreign, error) { return from(d, p, false) }

// Safety: the caller promises that p is such a struct, and that nothing else calls its deleter.
func from(d *vmm.Device, p unsafe.Pointer, versioned bool) (*Foreign, error) {
	f, err := take(d, p, versioned)
	if err != nil {
		return nil, fmt.Errorf("import by DLPack: %w", err)
	}
	return f, nil
}

func take(d *vmm.Device, p unsafe.Pointer, versioned bool) (*Foreign, error) {
	if err := dlpack.Supported(); err != nil {
		return nil, err
	}
	if p == nil {
		return nil, fmt.Errorf("%w: no tensor", vmm.ErrInvalid)
	}
	destroy := func() { dlpack.Delete(p, versioned) }
	t := dlpack.Read(p, versioned)
	if versioned && t.Major != dlpack.Major {
		destroy()
		return nil, fmt.Errorf("%w: DLPack %d.%d, not %d", vmm.ErrNotSupported, t.Major, t.Minor, dlpack.Major)
	}
	f, err := fromTensor(d, t, destroy)
	if err != nil {
		destroy()
		return nil, err
	}
	return f, nil
}

// Bytes is the memory, if it is the host's: pinned or not. It is valid until Close. The program must not write to
// the bytes of a ReadOnly tensor.
func (f *Foreign) Bytes() ([]byte, error) { return Slice[byte](f) }

// Slice is the memory as elements of T, if it is the host's and its rows have no padding between them. T
// must be a number as large as an element or one byte; or a bool, if the elements are Bool, whose bytes the
// library has set to 0 or 1. It is valid until Close.
func Slice[T any](f *Foreign) ([]T, error) {
	if f == nil || f.dev == nil {
		return nil, fmt.Errorf("slice of a tensor: %w: no tensor", vmm.ErrInvalid)
	}
	size, align, err := uint64(unsafe.Sizeof(*new(T))), vmm.Ptr(unsafe.Alignof(*new(T))), error(nil)
	f.mu.RLock()
	defer f.mu.RUnlock()
	kind := reflect.TypeFor[T]().Kind()
	switch {
	case kind < reflect.Bool || kind > reflect.Complex128 || kind == reflect.Uintptr:
		err = fmt.Errorf("%w: elements of %v", vmm.ErrInvalid, reflect.TypeFor[T]())
	case f.closed:
		err = errForeignClosed
	case f.on == dlpack.CUDA:
		err = fmt.Errorf("%w: memory of %v", vmm.ErrNotSupported, f.dev)
	case kind == reflect.Bool && f.dtype != Bool:
		err = fmt.Errorf("%w: elements of bool, of %v", vmm.ErrInvalid, f.dtype)
	case size != 1 && size != f.dtype.size():
		err = fmt.Errorf("%w: elements of %d bytes, of %v", vmm.ErrInvalid, size, f.dtype)
	case f.ptr%align != 0:
		err = fmt.Errorf("%w: elements of %v at %v", vmm.ErrInvalid, reflect.TypeFor[T](), f.ptr)
	case size != 1 && f.size != f.rows*f.pitch:
		err = fmt.Errorf("%w: padding between rows", vmm.ErrNotSupported)
	}
	if err != nil {
		return nil, fmt.Errorf("slice of a tensor: %w", err)
	}
	if f.size == 0 {
		return nil, nil
	}
	// Safety: the memory is the other library's, and there until Close, as it
	// promises by the tensor; the collector does not know the address.
	at := uintptr(f.ptr)
	return unsafe.Slice(*(**T)(unsafe.Pointer(&at)), f.size/size), nil
}
