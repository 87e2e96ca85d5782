package kernel

import (
	"reflect"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm"
)

// Slice is n elements of host memory from p on, for Go functions of a Host that get a
// pointer and a length as two parameters. Only such a function may call it, and use the
// slice until it returns: elsewhere p need not be memory that the CPU can address.
func Slice[T any](p vmm.Ptr, n uint64) []T {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(addr(p)), n)
}

// addr is an address that the host driver has mapped.
// Safety: such memory is not Go's; the garbage collector does not follow the pointer.
func addr(p vmm.Ptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// bytesOf is a copy of a value of plain data.
// Safety: New's memory is of v's type and size.
func bytesOf(v reflect.Value) []byte {
	c := reflect.New(v.Type())
	c.Elem().Set(v)
	return unsafe.Slice((*byte)(c.UnsafePointer()), v.Type().Size())
}

// valueOf is the value of plain data whose bytes are b.
// Safety: as for bytesOf; b has that size.
func valueOf(t reflect.Type, b []byte) reflect.Value {
	c := reflect.New(t)
	copy(unsafe.Slice((*byte)(c.UnsafePointer()), t.Size()), b)
	return c.Elem()
}

// sliceAt is Slice of a type known at run time.
// Safety: as for Slice; any slice has this header.
func sliceAt(t reflect.Type, p vmm.Ptr, n int) reflect.Value {
	c := reflect.New(t)
	if n > 0 {
		*(*struct {
			p        unsafe.Pointer
			len, cap int
		})(c.UnsafePointer()) = struct {
			p        unsafe.Pointer
			len, cap int
		}{addr(p), n, n}
	}
	return c.Elem()
}

// pointerAt is the pointer p as one of type t.
// Safety: as for Slice.
func pointerAt(t reflect.Type, p vmm.Ptr) reflect.Value { return reflect.NewAt(t.Elem(), addr(p)) }

// sizeOf is the bytes of a T.
// Safety: nothing is dereferenced.
func sizeOf[T any]() uint64 {
	var z T
	return uint64(unsafe.Sizeof(z))
}

// rawBytes is the memory of a value of plain data.
// Safety: the slice is of x alone, and keeps it alive.
func rawBytes[T any](x *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(x)), sizeOf[T]()) }
