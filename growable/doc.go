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

// Files:
//
//	vector.go        Vector: New, FromRange, Append, Grow, SetLen, Close
//	rows.go          Rows: rows of a width known at run time, with a pitch
//	reader.go        Source, Reader: elements of bytes that grow elsewhere
//	rowsreader.go    RowsReader: the same for rows
//	writer.go        Writer: many small appends as few large ones
//	wait.go          Wait: readers that wait for a length, by Changed; shareable/viewwait.go: by a page
//	counted.go       what Vector, Rows and their readers have in common: counts, bounds, growth
//	element.go       which types can be elements
//	layout.go        LayoutOf; the Layout and Tensor of a Vector and of Rows
//	bytes_unsafe.go  elements as bytes
