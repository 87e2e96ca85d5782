package collective

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/engine"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// ncclEngine is a member's end over NCCL.
type ncclEngine struct {
	lib    *nccl.Library
	comm   *nccl.Comm
	on     driver.Device
	window *uint64 // where the handle of a window that is being made goes
}

var _ engine.Engine = (*ncclEngine)(nil)

// startNCCL begins to join a group, which stands once Progress is nil.
func startNCCL(lib *nccl.Library, dev *vmm.Device, o Options) (*ncclEngine, error) {
	if dev.Driver().Name() != "cuda" {
		return nil, fmt.Errorf("%w: NCCL moves memory of CUDA's devices, not of %v", vmm.ErrNotSupported, dev)
	}
	raw, err := dev.Raw()
	if err != nil {
		return nil, err
	}
	e := &ncclEngine{lib: lib, on: raw}
	err = raw.Do(func() (err error) {
		e.comm, err = lib.Join(o.ID, o.Rank, o.Size)
		return err
	})
	return e, err
}

func (e *ncclEngine) Run(st driver.Stream, _ []driver.Span, calls []nccl.Call) error {
	return e.on.Do(func() error { return e.comm.Run(st, calls) })
}

func (e *ncclEngine) Progress() error {
	err := e.on.Do(e.comm.Progress)
	if err == nil && e.window != nil {
		*e.window, e.window = e.comm.Window(), nil
	}
	return err
}

func (e *ncclEngine) Register(p vmm.Ptr, n uint64) (handle uint64, err error) {
	err = e.on.Do(func() (err error) {
		handle, err = e.comm.Register(uint64(p), n)
		return err
	})
	return handle, err
}

func (e *ncclEngine) Deregister(handle uint64) error {
	return e.on.Do(func() error { return e.comm.Deregister(handle) })
}

func (e *ncclEngine) RegisterWindow(p vmm.Ptr, n uint64, handle *uint64) error {
	err := e.on.Do(func() error { return e.comm.RegisterWindow(uint64(p), n) })
	switch {
	case err == nil:
		*handle = e.comm.Window()
	case errors.Is(err, nccl.ErrInProgress):
		e.window = handle
	}
	return err
}

func (e *ncclEngine) DeregisterWindow(handle uint64) error {
	return e.on.Do(func() error { return e.comm.DeregisterWindow(handle) })
}

func (e *ncclEngine) Close() error { return e.on.Do(e.comm.Finalize) }

func (e *ncclEngine) Abort() error {
	if err := e.on.Do(e.comm.Abort); !errors.Is(err, vmm.ErrDeviceLost) {
		return err
	}
	return nil // the communicator went with the device
}

func (e *ncclEngine) Free() error {
	if err := e.on.Do(e.comm.Destroy); !errors.Is(err, vmm.ErrDeviceLost) {
		return err
	}
	return nil
}

func (e *ncclEngine) Name() string { return e.lib.String() }
