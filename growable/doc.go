// Package growable has Vector, a slice in device memory that grows in place: growth
// copies no element, and the address never changes.
//
//	Vector              elements of one type
//	Rows                rows of a width known at run time, with or without padding
//	Writer              buffers single elements or rows for either
//	Reader, RowsReader  read a shareable.View, or a vmm.Range, as elements or rows
//	LayoutOf            says what the bytes are, for another process
//
// A Vector is a [vmm.Range] that knows the size of its element, and nothing more.
// Use Vector.Range for bytes, peers, streams and sharing.
//
// Elements are plain data of a fixed layout, checked once for each type:
// numbers, bools, and arrays and structs of them. Pointers, strings and slices
// mean nothing on a device, and int has no fixed size there.
package growable
