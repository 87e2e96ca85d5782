// Package growable has Vector, a slice in device memory that grows in place: growth
// copies no element, and the address never changes.
//
// Rows is the same for rows whose width is known at run time. Writer buffers
// elements for a Vector.
//
// A Vector is a [vmm.Range] that knows the size of its element, and nothing more.
// Use Vector.Range for bytes, peers, streams and sharing.
//
// Elements are plain data of a fixed layout, checked once for each type:
// numbers, bools, and arrays and structs of them. Pointers, strings and slices
// mean nothing on a device, and int has no fixed size there.
package growable
