//go:build !cgo || !linux || nonvml

package gpuprocs

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memmap"
)

// Processes asks NVML.
type Processes struct{}

// Open is vmm.ErrNotSupported: this program was built without NVML.
func Open() (*Processes, error) {
	return nil, fmt.Errorf("%w: this program was built without NVML", vmm.ErrNotSupported)
}

// Close returns nil.
func (p *Processes) Close() error { return nil }

// Of returns none.
func (p *Processes) Of(*vmm.Device) []memmap.Process { return nil }

// Free is vmm.ErrNotSupported.
func (p *Processes) Free(*vmm.Device) (uint64, error) {
	return 0, fmt.Errorf("%w: this program was built without NVML", vmm.ErrNotSupported)
}
