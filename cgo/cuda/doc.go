// Package cuda is the CUDA driver as a driver.Driver. It is the only place that
// knows CUDA's names and numbers.
//
//	abi.h       CUDA's types and numbers, written here, held to NVIDIA's header
//	symbols.h   every symbol that is called, with its version
//	*.c         one function for each call; push, work and pop inside it
//	*.go        what the seam asks for, made of those; errors; the lost state
//
// libcuda is opened with dlopen at the first call of [Default], so a program
// starts, and can be built, where there is none. Without cgo, or on another
// system than Linux, Default answers that there is no driver.
package cuda
