//go:build cgo && linux && !nonvml

package gpuprocs

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cuvmm/cuvmm/internal/nvmlcalls"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memmap"
)

// Processes asks NVML. Safe for concurrent use until Close.
type Processes struct{ lib nvmlcalls.Library }

// Open loads NVML, libnvidia-ml.so.1, which is part of NVIDIA's driver. It is vmm.ErrNotSupported
// where that is not installed. The caller must Close it.
func Open() (*Processes, error) { return open(nvml.New()) }

func open(lib nvml.Interface) (*Processes, error) {
	l, err := nvmlcalls.Open(lib)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", vmm.ErrNotSupported, err)
	}
	return &Processes{l}, nil
}

// Close ends the use of NVML. No Of may run, or follow. It returns nil.
func (p *Processes) Close() error {
	p.lib.Close()
	return nil
}

// Of is memmap.Options.Processes: the other processes with a context on the device, as the driver
// counts their memory; none for memory of the host, or if NVML does not say. NVML gives the PIDs of the
// host: in a container with PIDs of its own a name may be another process's, and this process counts
// as another.
func (p *Processes) Of(dev *vmm.Device) (all []memmap.Process) {
	info := dev.Info()
	if !strings.HasPrefix(info.Open, "cuda:") {
		return nil
	}
	return p.of(uuidOf(info), info.PCI, info.MIG != "")
}

// Free is how much memory of a GPU is free, whoever has the rest; vmm.ErrNotSupported for memory of the host, or if
// NVML does not say.
func (p *Processes) Free(dev *vmm.Device) (uint64, error) {
	info := dev.Info()
	if !strings.HasPrefix(info.Open, "cuda:") {
		return 0, fmt.Errorf("%w: free memory of %v", vmm.ErrNotSupported, dev)
	}
	return p.free(uuidOf(info), info.PCI, info.MIG != "")
}

func (p *Processes) free(uuid, pci string, mig bool) (uint64, error) {
	g, err := p.lib.Find(uuid, pci, mig)
	if err == nil && g.Own == nil {
		err = errors.New("only the GPU of the instance is found")
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", vmm.ErrNotSupported, err)
	}
	m, err := nvmlcalls.Call(p.lib, g.Own.GetMemoryInfo, "nvmlDeviceGetMemoryInfo")
	if err != nil {
		return 0, fmt.Errorf("%w: %w", vmm.ErrNotSupported, err)
	}
	return m.Free, nil
}

func (p *Processes) of(uuid, pci string, mig bool) (all []memmap.Process) {
	g, err := p.lib.Find(uuid, pci, mig)
	if err != nil || g.Own == nil {
		return nil
	}
	infos, err := p.lib.Processes(g.Own)
	if err != nil {
		return nil
	}
	for _, i := range infos {
		if int(i.Pid) == os.Getpid() || i.UsedGpuMemory == ^uint64(0) {
			continue
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", i.Pid)) // it may have ended, or be out of sight
		all = append(all, memmap.Process{PID: int(i.Pid), Name: strings.TrimSpace(string(name)), Bytes: i.UsedGpuMemory})
	}
	return all
}

// uuidOf is the UUID as NVML writes it.
func uuidOf(info vmm.Info) string {
	if info.MIG != "" {
		return info.MIG
	}
	u := info.UUID
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
