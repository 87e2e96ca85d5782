// Package dlpack is DLPack's two structs in C memory: those that Go exports, whose deleters only mark
// them, and those of other libraries. It knows nothing of who has the memory that they describe.
package dlpack

// Files:
//
//	dlpack.h     DLPack's structs, and what Go calls
//	export.c     structs for others; their deleters
//	import.c     structs of others
//	tensor.go    Tensor, and which device types and flags there are
//	linux.go     Slot: exports; Read and Delete
//	stub.go      builds without cgo, and systems other than Linux
//	consumer     a library that takes tensors, for tests
