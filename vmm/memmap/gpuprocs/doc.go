// Package gpuprocs says how much memory of a GPU other processes have, by NVML, for package memmap. It
// is a package of its own, so that memmap needs neither cgo nor NVML.
//
//	processes, err := gpuprocs.Open()
//	if err != nil {
//		return err
//	}
//	defer processes.Close()
//	m := memmap.New(memmap.Options{Devices: devices, Processes: processes.Of})
package gpuprocs

// Files:
//
//	gpuprocs.go       Processes: Open, Of, Close
//	unsupported.go    the same where there is no NVML
