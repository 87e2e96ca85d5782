package collective

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
)

// NewID returns the identity of a new group, which the caller sends to the other members by any
// channel; the processes of a torchrun, mpirun or srun need none. NCCL listens for the others in this
// process, so it has to be a member. path is Options.Library. Without NCCL it returns
// vmm.ErrNotSupported.
func NewID(path string) (ID, error) {
	lib, err := nccl.Open(path)
	if err != nil {
		return ID{}, fmt.Errorf("make a group's identity: %w", err)
	}
	return lib.NewID()
}

// Join makes this process a member of a group, for memory of dev, and returns once all members
// are there. Each device can have one member of a group. Join does not choose the device: with
// Options.Size 0 open that of FromEnvironment's LocalRank. The errors are
//
//	vmm.ErrNotSupported      there is no NCCL, or dev is no GPU of CUDA; collectivetest has groups without
//	vmm.ErrInvalid           the options, an environment that names no group, or NCCL_COMM_BLOCKING or NCCL_COMM_SPLIT_SHARE_RESOURCES is set, there or in a file of NCCL's
//	ErrMismatch              members that came by the environment differ in the size or the job, or two have one rank
//	os.ErrDeadlineExceeded   a member did not come within Options.Timeout
//	ErrPeerGone              a member ended while rank 0 sent the identity
//	ErrFailed                NCCL cannot reach the others; two have one rank and an identity of Options.ID
//
// and that of a context that has ended. The caller must Close or Abort the Group.
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
	if err := checkOverrides(os.LookupEnv, confFiles(os.Getenv("NCCL_CONF_FILE"), homeDir(), confOfAllUsers)); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	lib, err := nccl.Open(o.Library)
	if err != nil {
		return nil, err
	}
	if o.Size == 0 {
		if o, err = o.fromEnvironment(limited, lib.NewID); err != nil {
			return nil, deadlineError(ctx, err)
		}
	}
	e, err := joinNCCL(limited, lib, dev, o)
	if err != nil {
		return nil, deadlineError(ctx, err)
	}
	return newGroup(dev, e, o)
}

// deadlineError is err, or the error for a wait that took too long if it was not ctx that ended.
func deadlineError(ctx context.Context, err error) error {
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: not all members came: %w", os.ErrDeadlineExceeded, err)
	}
	return err
}

// fromEnvironment takes the group from the environment. newID makes an identity.
func (o Options) fromEnvironment(ctx context.Context, newID func() (ID, error)) (Options, error) {
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
	m := meeting{address: env.Address, size: o.Size, job: jobNumber(os.Getenv)}
	switch {
	case env.Address == "":
	case env.Rank == 0:
		err = m.giveID(ctx, o.ID)
	default:
		o.ID, err = m.takeID(ctx, o.Rank)
	}
	return o, err
}
