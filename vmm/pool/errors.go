package pool

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
)

var (
	// ErrDoubleFree reports a block that was freed before.
	ErrDoubleFree = fmt.Errorf("%w: the block has been freed", vmm.ErrInvalid)
	// ErrForeignBlock reports a block of another pool, or the zero Block.
	ErrForeignBlock = fmt.Errorf("%w: the block is not of this pool", vmm.ErrInvalid)
	// ErrNoRoom reports a block that Resize cannot lengthen in place.
	ErrNoRoom = errors.New("no free memory beside the block")
)

// notAllocated is why a block's number, where the pool keeps it, was another one.
func notAllocated(number *atomic.Uint64, seq uint64) error {
	switch number.Load() {
	case seq | heldBit, seq: // seq: it was held when the caller looked
		return fmt.Errorf("%w: the block is held", vmm.ErrBusy)
	case seq | resizingBit:
		return fmt.Errorf("%w: the block is being resized", vmm.ErrBusy)
	}
	return ErrDoubleFree
}

// fail wraps err for op.
func (p *Pool) fail(op string, ptr vmm.Ptr, size uint64, err error) error {
	if err == nil {
		return nil
	}
	return wrapNamed(p.Device(), op, nonnil.Of(p).name, ptr, size, err)
}

// wrap is nil for nil, and an error that is wrapped already as it is.
func wrap(dev *vmm.Device, op string, ptr vmm.Ptr, size uint64, err error) error {
	return wrapNamed(dev, op, "", ptr, size, err)
}

// wrapNamed is wrap for what has a name.
func wrapNamed(dev *vmm.Device, op, name string, ptr vmm.Ptr, size uint64, err error) error {
	if err == nil {
		return nil // and nothing is allocated
	}
	err = inside.VMM.HistoryLog(dev).Refused(uint64(ptr), size, name, err)
	var done *vmm.OpError
	if errors.As(err, &done) {
		return err
	}
	return &vmm.OpError{Op: op, Device: dev.String(), Name: name, Addr: ptr, Size: size, Err: err}
}
