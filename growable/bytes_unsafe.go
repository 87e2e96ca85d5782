package growable

import "unsafe"

// bytesOf returns the memory of s.
// Safety: T is plain data (check), so all of its bytes may be read and written.
func bytesOf[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), uintptr(len(s))*unsafe.Sizeof(s[0]))
}

// elements returns b as elements of T.
// Safety: T is plain data, b starts at a page and holds a whole number of T.
func elements[T any](b []byte) []T {
	var zero T
	if len(b) == 0 {
		return []T{}
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))/unsafe.Sizeof(zero))
}
