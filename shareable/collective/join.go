package collective

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
)

// NewID makes the identity of a new group. One member calls it, and the others get it by any
// channel; the processes of a torchrun, mpirun or srun need none. path is Options.Library. The
// process that has called it has to be one of the members: NCCL listens there for the others.
func NewID(path string) (ID, error) {
	lib, err := nccl.Open(path)
	if err != nil {
		return ID{}, fmt.Errorf("make a group's identity: %w", err)
	}
	return lib.NewID()
}

// Join makes this process a member of a group, for memory of dev, and returns once all members
// are there. Each device can have one member of a group.
//
// Without NCCL, or on a device that is no GPU of CUDA, it returns vmm.ErrNotSupported; package
// collectivetest has groups without. What the members do not agree on is ErrMismatch where
// the identity comes from the environment. A rank that is named twice is ErrMismatch
// there, too; else, as a member that does not come, it is os.ErrDeadlineExceeded or
// ErrFailed. NCCL_COMM_BLOCKING or NCCL_COMM_SPLIT_SHARE_RESOURCES in the environment is
// vmm.ErrInvalid. The caller must Close or Abort the Group.
func Join(ctx context.Context, dev *vmm.Device, o Options) (*Group, error) {
	g, err := join(ctx, dev, o)
	if err != nil {
		return nil, fmt.Errorf("join a group: %w", err)
	}
	return g, nil
}

func join(ctx context.Context, dev *vmm.Device, o Options) (*Group, error) {
	if ctx == nil {
		return nil, errNoContext
	}
	o, err := o.resolve(dev)
	if err != nil {
		return nil, err
	}
	for _, name := range overrides {
		if os.Getenv(name) != "" {
			return nil, fmt.Errorf("%w: with %s set no time limit could end a call of NCCL", vmm.ErrInvalid, name)
		}
	}
	limited, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	lib, err := nccl.Open(o.Library)
	if err != nil {
		return nil, err
	}
	if o.Size == 0 {
		if o, err = o.meet(limited, lib.NewID); err != nil {
			return nil, lateOr(ctx, err)
		}
	}
	e, err := joinNCCL(limited, lib, dev, o)
	if err != nil {
		return nil, lateOr(ctx, err)
	}
	return newGroup(dev, e, o)
}

// overrides are variables with which NCCL makes other communicators than a program asks for: the
// two of a member have to differ in whether they block, and to share what aborts them.
var overrides = []string{"NCCL_COMM_BLOCKING", "NCCL_COMM_SPLIT_SHARE_RESOURCES"}

// lateOr is err, or the error for a wait that took too long if it was not ctx that ended.
func lateOr(ctx context.Context, err error) error {
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: not all members came: %w", os.ErrDeadlineExceeded, err)
	}
	return err
}

// meet takes the group from the environment. newID makes an identity.
func (o Options) meet(ctx context.Context, newID func() (ID, error)) (Options, error) {
	env, err := FromEnvironment()
	if err != nil {
		return o, err
	}
	o.Rank, o.Size = env.Rank, env.Size
	if env.Rank == 0 || env.Address == "" { // with NCCL_COMM_ID all make the same
		if o.ID, err = newID(); err != nil {
			return o, err
		}
	}
	switch {
	case env.Address == "":
	case env.Rank == 0:
		err = giveID(ctx, env.Address, o.Size, o.ID)
	default:
		o.ID, err = takeID(ctx, env.Address, o.Rank, o.Size)
	}
	return o, err
}
