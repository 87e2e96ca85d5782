package main

import (
	"errors"
	"sync"

	"github.com/tetratelabs/wazero/experimental"

	"github.com/cuvmm/cuvmm/vmm"
)

// Allocator makes memories for WebAssembly. Each is a vmm.Range: it grows in place, so the
// threads of a program can share it. Safe for concurrent use. The caller must Close it, after
// the wazero.Runtime and before the device.
//
// wazero frees a memory when its module is closed, or one that imports it, and the memory is
// unmapped at once. Access to it then ends the process: by a function of a module that runs
// meanwhile, or through a slice that api.Memory.Read returned before.
type Allocator struct {
	// Device is where the memory comes from: one whose memory the CPU can address.
	Device *vmm.Device
	// Failed is called with what wazero has no use for: why a memory could not be made or
	// grow. nil drops it.
	Failed func(error)

	mu   sync.Mutex
	open map[*vmm.Range]bool
}

// Allocate reserves addresses for limit bytes. It takes no memory for the capacity that
// wazero suggests: that would only save copies, and there are none. If it fails, the memory
// cannot grow; wazero panics if the module has pages at the start.
func (a *Allocator) Allocate(_, limit uint64) experimental.LinearMemory {
	r, err := a.Device.NewRange(vmm.RangeOptions{
		Max:  max(limit, 1), // 0 would be the device's memory
		Zero: true,
	})
	if err != nil {
		a.failed(err)
		return &memory{nil, a}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == nil {
		a.open = map[*vmm.Range]bool{}
	}
	a.open[r] = true
	return &memory{r, a}
}

func (a *Allocator) failed(err error) {
	if a.Failed != nil {
		a.Failed(err)
	}
}

// Close frees what wazero has not freed: the memory of modules that it could not instantiate.
// It also returns why memory could not be freed before. Twice is fine.
func (a *Allocator) Close() (err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for r := range a.open {
		err = errors.Join(err, a.freeLocked(r))
	}
	return err
}

// freeLocked needs a.mu. A range that could not be closed stays, for another try.
func (a *Allocator) freeLocked(r *vmm.Range) error {
	err := r.Close()
	if err == nil {
		delete(a.open, r)
	}
	return err
}

type memory struct {
	r *vmm.Range // nil if Allocate failed
	a *Allocator
}

// Reallocate returns the first size bytes. New ones are zero. It returns nil, and changes no
// byte, if there is no memory for them.
func (m *memory) Reallocate(size uint64) []byte {
	b, err := resize(m.r, size)
	if err != nil {
		m.a.failed(err)
	}
	return b
}

func resize(r *vmm.Range, size uint64) ([]byte, error) {
	switch have := r.Len(); {
	case size > have:
		if err := r.Grow(size - have); err != nil {
			return nil, err
		}
	case size < have: // what comes back later is zero, too
		b, err := r.Host()
		if err != nil {
			return nil, err
		}
		clear(b[size:])
	}
	if err := r.SetLen(size); err != nil {
		return nil, err
	}
	return r.Host()
}

// Free unmaps the memory. An error comes from Allocator.Close, which tries again.
func (m *memory) Free() {
	m.a.mu.Lock()
	defer m.a.mu.Unlock()
	_ = m.a.freeLocked(m.r)
}
