// Package cloop makes the driver's calls as a C program would, without cgo/cuda, and
// times them in C. It is for tests: the binding and the library above it are compared
// with it. A failed call undoes nothing; the test fails. It needs cgo, and Linux.
package cloop

// Files:
//
//	cloop.go    Loop, and its calls from Go
//	cloop.h     those calls in C
//	cloop.c     growth, launches, pools, sharing
//	staged.c    a download through pinned memory by several threads
//	internal.h  what the C files share
