// Package cuda is the CUDA driver as a driver.Driver. It is the only place that
// knows CUDA's names and numbers.
//
//	abi.h       CUDA's types and numbers, written by hand and compared with NVIDIA's header
//	symbols.h   every symbol that is called, with its version
//	shims.h     one C function for each call; it pushes the context, works and pops it
//
// Every subject has a Go file, and a C file of the same name where it calls
// libcuda: load, info, device, memory, access, export, peers, copy, copy2d, stream,
// event, graph, module, launch, streammemops, allocator, hostallocator. Without a C file
// are driver.go (what all devices share), handletable.go (the streams, events, modules
// and graphs that exist), result.go and errorkinds.go (from CUDA's results to the errors of
// package driver).
//
// libcuda is opened with dlopen at the first call of [Default], so a program can
// be built and started where there is none. Without cgo, or on another system than
// Linux, Default returns driver.ErrNoDriver.
package cuda
