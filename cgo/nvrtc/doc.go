// Package nvrtc compiles CUDA C++ at run time, with NVIDIA's libnvrtc. The library is
// opened with dlopen by [Open], so a program can be built and started where there is
// none, and needs no toolkit.
//
// A Compiler can be used from several goroutines at once. Compiling takes no device
// and no driver.
//
// A cubin runs on one architecture and needs a driver that is not older than the
// compiler's major version. PTX runs on newer architectures too, if the driver knows its
// version, and the driver compiles it again at the first load.
//
// Without cgo, or on another system than Linux, Open returns driver.ErrNotSupported.
package nvrtc

// Files:
//
//	symbols.h     NVRTC's types, and every symbol that is called
//	shims.h, .c   one C function for a whole compilation
//	nvrtc.go      Options, Cache, Result, CompileError
//	load.go       finding the library; the architectures that it knows
//	compile.go    Compile, and NVRTC's errors as those of package driver
//	includes.go   whether a source includes files whose text is not known
//	cache.go      the folder of kept results: names of files, who may write, its limit
//	cachefile.go  what is in a kept result, and the key of its name
//	stub.go       builds without cgo, and systems other than Linux
