// Package machine reads what a report says of the machine, and its state: of the host
// from the files of the system, of GPUs from those and from NVML, NVIDIA's management
// library. What cannot be read is null in the report, with the reason. Nothing here
// changes the machine, and nothing makes a context on a device.
package machine

// Files:
//
//	host.go        Host: what does not change: CPUs, memory, versions, limits
//	state.go       AddState: what may change: load, governors, huge pages; clocks, power, links
//	nvml.go        what NVML says of GPUs, and AddPaths: of what connects them
//	nvml_cgo.go    the calls of NVML
//	nvml_stub.go   builds without NVML
