package collective

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/engine"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// ncclEngine is a member's end over NCCL.
type ncclEngine struct {
	*nccl.Comm
	lib *nccl.Library
}

var _ engine.Engine = ncclEngine{}

// ncclMaker is NCCL.
type ncclMaker struct {
	lib       *nccl.Library
	anyDevice bool // see hooks
}

var _ engine.Maker = ncclMaker{}

func (m ncclMaker) NewID() (ID, error) { return m.lib.NewID() }

// Join joins a group, and returns once all members have.
func (m ncclMaker) Join(ctx context.Context, dev *vmm.Device, id ID, rank, size int) (engine.Engine, error) {
	if dev.Driver().Name() != "cuda" && !m.anyDevice {
		return nil, fmt.Errorf("%w: NCCL moves memory of CUDA's devices, not of %v", vmm.ErrNotSupported, dev)
	}
	raw, err := dev.Raw()
	if err != nil {
		return nil, err
	}
	c, err := m.lib.Join(id, rank, size, raw.Do)
	if err != nil {
		return nil, err
	}
	if err := waitJoined(ctx, c); err != nil {
		return nil, errors.Join(err, c.Abort())
	}
	return ncclEngine{c, m.lib}, nil
}

// waitJoined waits until all members have joined, which takes a third of a second or more.
func waitJoined(ctx context.Context, c *nccl.Comm) error {
	pause := time.NewTicker(time.Millisecond)
	defer pause.Stop()
	for {
		if err := c.Progress(); !errors.Is(err, nccl.ErrInProgress) {
			return err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Run needs no memory: it is mapped, and NCCL takes addresses.
func (e ncclEngine) Run(st driver.Stream, _ []driver.Span, calls []nccl.Call) error {
	return e.Comm.Run(st, calls)
}

func (e ncclEngine) Register(p vmm.Ptr, n uint64) (handle uint64, err error) {
	return e.Comm.Register(uint64(p), n)
}

func (e ncclEngine) RegisterWindow(p vmm.Ptr, n uint64) (handle uint64, err error) {
	return e.Comm.RegisterWindow(uint64(p), n)
}

func (e ncclEngine) Err() error { return e.Progress() }

func (e ncclEngine) Close() error { return e.Finalize() }

// Free ends the communicators, unless they were aborted.
func (e ncclEngine) Free() error {
	err := e.Destroy()
	if err == nil || errors.Is(err, vmm.ErrClosed) {
		return nil
	}
	if failed := e.Comm.Abort(); !errors.Is(failed, vmm.ErrClosed) { // else Destroy has aborted it
		err = errors.Join(err, failed)
	}
	return err
}

func (e ncclEngine) Name() string { return "NCCL " + e.lib.String() }
