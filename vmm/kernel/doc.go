// Package kernel runs kernels on memory of package vmm: code from PTX, from a binary or
// compiled at run time, launched with Go values. With no GPU, Go functions stand in for the
// kernels and run in the stream's order, so that a program is the same everywhere.
//
//	mod, err := kernel.Load(dev, kernel.Code{CUDA: source, Host: kernel.Host{"saxpy": saxpy}})
//	f, err := mod.Func("saxpy")
//	err = f.Launch(stream, kernel.Over(x.Len(), 256), float32(2), kernel.Read(x), y)
//
// # Arguments
//
//	Go                                      C
//	int8 ... uint64, float32, float64, bool the same; not int and uint, whose size differs
//	complex64, complex128                   float2, double2
//	structs and arrays of these             the same struct, by value
//	vmm.Ptr                                 a pointer
//	a Memory: Range, Vector, Rows, View     a pointer and a 64-bit count, as two parameters
//	                                        or as one struct; Len counts bytes, elements, rows
//	Pointer(Memory)                         a pointer alone
//	*Cursor                                 cuvmm::cursor *
//
// The sizes are checked against the kernel's parameters where they are known: on the host,
// by a driver of CUDA 12.4 or later, and for PTX text by any driver. For a binary on an
// older driver nothing can be checked.
//
// # What a launch holds
//
// Memory among the arguments is not unmapped, and no access to it is taken away, until the
// kernel is queued; whatever does so later waits for the kernel (see vmm.Reservation.UsedBy
// for what it waits for). So a vector may grow, be clipped and be closed at any time: a
// launch that comes too late is refused and none faults. A kernel gets the length that a
// vector has at the launch, and may rely on nothing beyond it while it runs.
package kernel

// Files:
//
//	load.go                  Code, Load, Module.Func; Host, the Go functions that replace kernels
//	compile.go               CUDA source to an image, by cgo/nvrtc; AppendHeader
//	ptx.go                   the parameters of kernels, read from PTX text
//	func.go                  Func: Launch, Bind, Bound, Occupancy; what a bound launch writes anew
//	args.go                  Go values as arguments: Memory, Read, Pointer; layout; Config, Over
//	hostfunc.go              Go functions as kernels of the host driver; Threads
//	slice_unsafe.go          Slice, and values of plain data as bytes
//	cursor.go                Cursor: Append and Resume, their passes, and the growth between them
//	devicecursor.go          a cursor as Go functions see it
//	builtin.go               Builtins: loading, how they are launched, scratch memory, patterns
//	builtinops.go            Iota, sums, Min, Max, Compact, Gather, Scatter, Copy
//	hostbuiltin.go           the built-in kernels as Go functions
//	pattern.go               the pattern that FillPattern writes
//	device/cuvmm_append.cuh  appending, on the device's side; users include it too
//	device/builtin.cu        the built-in kernels
//	device/builtin.ptx       what make kernels makes of them
//	device/bench.cu          checks and measures them without Go
