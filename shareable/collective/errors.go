package collective

import (
	"errors"
	"fmt"
	"os"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
)

var (
	// ErrPeerGone is for another member that has ended or cannot be reached. The text names it
	// where NCCL does.
	ErrPeerGone = nccl.ErrPeerGone
	// ErrFailed is for a failure of NCCL or of what it runs on. It ends the group.
	ErrFailed = nccl.ErrFailed
	// ErrMismatch is for members that do not make the same call: the group goes on. From Join it
	// is for members that do not agree on the group.
	ErrMismatch = errors.New("the members disagree")
	// ErrPeerFailed is for a call that another member could not make, for lack of memory, say.
	// Lengths and bytes are as before, and the group goes on.
	ErrPeerFailed = errors.New("another member failed")
	// ErrAborted is for a group after Abort, or after an error that has ended it.
	ErrAborted = errors.New("the group was aborted")
)

var (
	errNoGroup   = fmt.Errorf("%w: no group", vmm.ErrInvalid)
	errNoContext = fmt.Errorf("%w: no context", vmm.ErrInvalid)
	errClosed    = fmt.Errorf("%w: group", vmm.ErrClosed)
)

// errLate is for a wait that took as long as Options.Timeout.
func (g *Group) errLate() error {
	return fmt.Errorf("%w: not done within %v: a member is late, is gone unseen, or makes other calls", os.ErrDeadlineExceeded, g.opts.Timeout)
}
