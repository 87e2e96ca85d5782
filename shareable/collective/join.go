package collective

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/engine"
	"github.com/cuvmm/cuvmm/vmm"
)

// NewID returns the identity of a new group, which the caller sends to the other members by any
// channel; the processes of a torchrun, mpirun or srun need none. NCCL listens for the others in
// this process, so it has to be a member. path is Options.Library. Without NCCL it returns
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
//	vmm.ErrInvalid           the options, members on several hosts without a secret, an environment that names no group, or NCCL_COMM_BLOCKING or NCCL_COMM_SPLIT_SHARE_RESOURCES is set, there or in a file of NCCL's
//	vmm.ErrPermission        this member, which came by the environment, has another secret than rank 0
//	ErrMismatch              this member came by the environment and has another size or job than rank 0, or a rank that is taken
//	os.ErrDeadlineExceeded   a member did not come within Options.Timeout; at rank 0 the text says who was refused, and why
//	ErrPeerGone              a member ended while the others joined
//	ErrFailed                NCCL cannot reach the others; two have one rank and an identity of Options.ID
//
// and that of a context that has ended. The caller must Close or Abort the Group.
func Join(ctx context.Context, dev *vmm.Device, o Options) (_ *Group, err error) {
	defer errtext.Wrapf(&err, "join a group")
	if ctx == nil {
		return nil, errNoContext
	}
	if o, err = o.resolve(dev); err != nil {
		return nil, err
	}
	if err := checkOverrides(os.LookupEnv, confFiles(os.Getenv("NCCL_CONF_FILE"), homeDir(), confOfAllUsers)); err != nil {
		return nil, err
	}
	lib, err := nccl.Open(o.Library)
	if err != nil {
		return nil, err
	}
	var at *meeting
	if o.Size == 0 {
		if at, err = o.fromEnvironment(); err == nil && at == nil {
			o.ID, err = lib.NewID() // all make the same
		}
		if err != nil {
			return nil, err
		}
	}
	return joinOn(ctx, dev, o, ncclMaker{lib, o.hooks.anyDevice}, at)
}

// forTests is what package collectivetest may ask for: see engine.ForTests.
type forTests struct{}

var _ = door.Open[engine.ForTests[*Group, Options]](forTests{})

func (forTests) JoinOn(ctx context.Context, dev *vmm.Device, o Options, of engine.Maker, at net.Listener) (_ *Group, err error) {
	defer errtext.Wrapf(&err, "join a group")
	if o, err = o.resolve(dev); err != nil {
		return nil, err
	}
	var m *meeting
	if at != nil {
		m = &meeting{address: at.Addr().String(), size: o.Size, secret: o.Secret, open: at}
	}
	return joinOn(ctx, dev, o, of, m)
}

// joinOn has the members meet, if at is not nil, and makes the group. The options are resolved.
func joinOn(ctx context.Context, dev *vmm.Device, o Options, of engine.Maker, at *meeting) (*Group, error) {
	limited, cancel := within(ctx, o.Timeout)
	defer cancel()
	var c *circle
	var err error
	if at != nil {
		if c, o.ID, err = at.join(limited, o.Rank, of.NewID); err != nil {
			return nil, lateError(limited, "not all members came", err)
		}
	}
	g, err := makeGroup(limited, dev, o, of, c)
	if err != nil {
		c.leave()
	}
	return g, err
}

// errTimeout is why a context of within has ended.
var errTimeout = fmt.Errorf("%w: Options.Timeout", os.ErrDeadlineExceeded)

// within is ctx for no longer than that.
func within(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, timeout, errTimeout)
}

// lateError is err, or the error for a wait that took too long if it was within that has ended, and
// not the caller's context.
func lateError(limited context.Context, what string, err error) error {
	if err != nil && errors.Is(err, context.DeadlineExceeded) && errors.Is(context.Cause(limited), errTimeout) {
		return fmt.Errorf("%w: %s: %w", os.ErrDeadlineExceeded, what, err)
	}
	return err
}

// makeGroup makes the group of members that have met, if c is not nil. After an error they have
// hung up. limited is of within.
func makeGroup(limited context.Context, dev *vmm.Device, o Options, of engine.Maker, c *circle) (*Group, error) {
	ctx, cancel := context.WithCancelCause(limited)
	defer cancel(nil)
	c.watch(cancel)
	e, err := of.Join(ctx, dev, o.ID, o.Rank, o.Size)
	if err != nil {
		err = lateError(limited, "not all members have connected", err)
		c.hangUp(err)
		return nil, err
	}
	return newGroup(dev, e, o, of, c)
}

// fromEnvironment takes the group from the environment. With NCCL_COMM_ID the members do not meet.
func (o *Options) fromEnvironment() (*meeting, error) {
	env, err := FromEnvironment()
	if err != nil {
		return nil, err
	}
	if o.Rank, o.Size = env.Rank, env.Size; env.Address == "" && o.Size > 1 {
		return nil, nil
	}
	secret, err := groupSecret(o.Secret, os.Getenv)
	if err != nil {
		return nil, err
	}
	return &meeting{address: env.Address, size: o.Size, job: jobNumber(os.Getenv), secret: secret}, nil
}
