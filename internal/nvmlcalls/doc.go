// Package nvmlcalls calls NVML, NVIDIA's library about the state of GPUs, also a version of it that
// lacks functions. It is empty in builds without cgo.
package nvmlcalls

// Files:
//
//	nvmlcalls.go  Library: Open, Find, Processes; Call
