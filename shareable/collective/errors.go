package collective

import (
	"errors"
	"fmt"
	"os"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
)

var (
	// ErrPeerGone is for a member that has ended or cannot be reached. Which one, the text says
	// where NCCL does.
	ErrPeerGone = nccl.ErrPeerGone
	// ErrFailed is for a failure of NCCL or of what it runs on. The group is of no more use.
	ErrFailed = nccl.ErrFailed
	// ErrMismatch is for members that do not make the same call.
	ErrMismatch = errors.New("the members disagree")
	// ErrPeerFailed is for a call that another member could not make: it has no memory, say.
	// Nothing was moved, and the group goes on.
	ErrPeerFailed = errors.New("another member failed")
	// ErrAborted is for a group after Abort, or after a call of it has failed for good.
	ErrAborted = errors.New("the group was aborted")
)

var (
	errNoGroup   = fmt.Errorf("%w: no group", vmm.ErrInvalid)
	errNoContext = fmt.Errorf("%w: no context", vmm.ErrInvalid)
	errClosed    = fmt.Errorf("%w: group", vmm.ErrClosed)
)

// errLate is for a wait that took as long as Options.Timeout.
func (g *Group) errLate() error {
	return fmt.Errorf("%w: not done within %v: a member is gone, or makes other calls", os.ErrDeadlineExceeded, g.opts.Timeout)
}
