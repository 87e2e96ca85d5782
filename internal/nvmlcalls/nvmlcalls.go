//go:build cgo && linux && !nonvml

package nvmlcalls

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Library is NVML. A call of a function that the loaded library lacks would end the process, since
// go-nvml leaves such names to the loader: so calls are made by Call. nvmlInit, nvmlShutdown and
// nvmlErrorString are in every version.
type Library struct{ nvml.Interface }

// Open initializes NVML. The caller must Close it.
func Open(lib nvml.Interface) (Library, error) {
	// go-nvml does not say why a library cannot be loaded.
	if r := lib.Init(); errors.Is(r, nvml.ERROR_LIBRARY_NOT_FOUND) {
		return Library{}, errors.New("NVML, libnvidia-ml.so.1, cannot be loaded")
	} else if r != nvml.SUCCESS {
		return Library{}, fmt.Errorf("NVML cannot be used: %w", r)
	}
	return Library{lib}, nil
}

// Close ends Open. What was read before is right all the same.
func (l Library) Close() { _ = l.Shutdown() }

// Call makes a call of NVML if the library has one of the functions named symbols.
func Call[T any](l Library, f func() (T, nvml.Return), symbols ...string) (result T, err error) {
	found := false
	for _, symbol := range symbols {
		found = found || l.Extensions().LookupSymbol(symbol) == nil
	}
	if !found {
		return result, errors.New("the driver is too old for this value")
	}
	result, r := f()
	if r != nvml.SUCCESS {
		return result, r
	}
	return result, nil
}

// GPU is a GPU, twice, or a MIG instance with its GPU. Own is nil if only the GPU of an instance was
// found.
type GPU struct{ Own, Parent nvml.Device }

// Find finds a GPU, or a MIG instance, by its UUID, or else by its place on the PCI bus.
func (l Library) Find(uuid, pci string, mig bool) (GPU, error) {
	byUUID := func() (nvml.Device, nvml.Return) { return l.DeviceGetHandleByUUID(uuid) }
	d, err := Call(l, byUUID, "nvmlDeviceGetHandleByUUID")
	// A MIG instance is found by its UUID only. By PCI address its GPU is, which has most values.
	if err == nil && mig {
		parent, err := Call(l, d.GetDeviceHandleFromMigDeviceHandle, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
		return GPU{d, parent}, err
	}
	if err != nil && pci != "" {
		byPCI := func() (nvml.Device, nvml.Return) { return l.DeviceGetHandleByPciBusId(pci) }
		parent, second := Call(l, byPCI, "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByPciBusId_v2")
		if second == nil && mig {
			return GPU{nil, parent}, nil
		}
		if second == nil {
			return GPU{parent, parent}, nil
		}
		err = fmt.Errorf("%w; at %s: %w", err, pci, second)
	}
	if err != nil {
		return GPU{}, fmt.Errorf("%s is not found: %w", uuid, err)
	}
	return GPU{d, d}, nil
}

// Processes are the processes with a context on a GPU. UsedGpuMemory is all ones if it is not known.
func (l Library) Processes(d nvml.Device) ([]nvml.ProcessInfo, error) {
	const symbol = "nvmlDeviceGetComputeRunningProcesses"
	return Call(l, d.GetComputeRunningProcesses, symbol, symbol+"_v2", symbol+"_v3")
}
