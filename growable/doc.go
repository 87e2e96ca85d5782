// Package growable has Vector, a slice in device memory that grows in place: no
// element is ever copied to make room, and its address never moves.
//
// Rows is the same for rows of a width that is known at run time, and Writer
// gathers elements for a Vector.
//
// A Vector is a [vmm.Range] that knows the size of its element, and nothing
// more. What concerns bytes, peers, streams and sharing is on Vector.Range.
//
// Elements are plain data of a fixed layout, checked once for each type:
// numbers, bools, and arrays and structs of them. Pointers, strings and slices
// mean nothing on a device, and int has no fixed size there.
package growable
