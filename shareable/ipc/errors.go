package ipc

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

// The errors of this package. Beside them it returns errors of package vmm. Compare with
// errors.Is: all but ErrExporterGone are vmm.ErrInvalid, too.
var (
	// ErrHandle is a handle, a token or a text of one that is empty, truncated, too long, garbage,
	// of another kind, or not of this pool.
	ErrHandle = fmt.Errorf("%w: no such handle", vmm.ErrInvalid)
	// ErrOwnHandle is a handle of this process's own: the driver opens those of others only.
	ErrOwnHandle = fmt.Errorf("%w: a handle of this process's own", vmm.ErrInvalid)
	// ErrExporterGone is a handle of a process that has ended, maybe with the whole system.
	ErrExporterGone = errors.New("the process that made the handle has ended")
	// ErrNotShared is a pool that cannot be exported: a default pool, an imported one, or one that
	// was made without pool.Options.Share.
	ErrNotShared = fmt.Errorf("%w: the pool was not made to be shared", vmm.ErrInvalid)
	// ErrImported is what the driver refuses to do with an imported pool, such as to trim it.
	ErrImported = fmt.Errorf("%w: the pool is imported", vmm.ErrInvalid)
	// ErrFreed is a Block that was freed before, or a zero value.
	ErrFreed = fmt.Errorf("%w: the block has been freed", vmm.ErrInvalid)
)

// fail wraps err for op, once: an error that already names its operation stays as it is.
func fail(dev *vmm.Device, op string, at vmm.Ptr, size uint64, err error) error {
	var done *vmm.OpError
	if err == nil || errors.As(err, &done) {
		return err
	}
	return &vmm.OpError{Op: op, Device: dev.String(), Addr: at, Size: size, Err: err}
}

// joinErr joins a second failure to the first in one line; either may be nil.
func joinErr(first error, second error) error {
	switch {
	case second == nil:
		return first
	case first == nil:
		return second
	}
	return fmt.Errorf("%w; and %w", first, second)
}

// lost reports whether the device is gone, and with it all that was to be freed.
func lost(err error) bool { return errors.Is(err, vmm.ErrDeviceLost) }
