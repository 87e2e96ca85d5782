package collective

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

// namePause is how long a failure waits for the connections to tell which member has ended.
const namePause = time.Second

// engineFailed is fail for an error of the engine. NCCL knows that a member is gone, and often not
// which one; the connections tell at about the same time.
func (g *Group) engineFailed(err error) error {
	if g.met && errors.Is(err, ErrPeerGone) {
		t := time.NewTimer(namePause)
		defer t.Stop()
		select {
		case <-g.stop:
		case <-t.C:
		}
	}
	return g.fail(err)
}

// Shrink makes a group of the members that live, in the order of their ranks, and ends this one, of
// which no error can come any more. Each of them has to call it, usually after ErrPeerGone; what
// this group has queued on streams is ended first, as by Abort. Memory stays where it is, with its
// contents, but for the bytes that Unwritten lists. Registrations end.
//
// The members find each other by the addresses at which they met, so one of Options.ID has
// vmm.ErrNotSupported. The lowest rank that lives leads, whoever that is. A member is known to be
// dead if its host refuses a connection to it. One that cannot be reached may live on the other
// side of a network that has split, and so may one that does not call Shrink: the others wait for a
// lower rank until half of Options.Timeout, or of the time of ctx, is over, and for a higher one
// until three quarters are. Those that have come go on if they are more than those that may live
// elsewhere, or as many and the lowest rank is among them: so at most one side does. The others get
// ErrPeerGone.
//
// After an error Shrink may be called again, by all who live. The caller must Close or Abort the
// new group, and this one as long as Shrink fails. Close and Abort wait for it.
func (g *Group) Shrink(ctx context.Context) (_ *Group, err error) {
	defer func() { err = g.op("shrink", err) }()
	if err := g.checkCall(ctx); err != nil {
		return nil, err
	}
	_ = g.fail(ErrAborted)  // unless it has ended
	g.calling <- struct{}{} // calls return soon
	defer g.end()
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed
	case g.circle == nil:
		return nil, fmt.Errorf("%w: the members of a group of Options.ID, or of NCCL_COMM_ID, do not know each other's addresses", vmm.ErrNotSupported)
	}
	<-g.aborted
	limited, cancel := within(ctx, g.opts.Timeout)
	defer cancel()
	c, ranks, id, err := g.circle.shrink(limited, g.of.NewID)
	if err != nil {
		return nil, lateError(limited, "not all members came", err)
	}
	g.circle = c // from where Shrink goes on if it is called again
	o := g.opts
	o.ID, o.Rank, o.Size = id, c.rank, len(ranks)
	next, err := makeGroup(limited, g.dev, o, g.of, c)
	if err != nil {
		return nil, err
	}
	g.circle = nil // it is that of next
	return next, g.freeCalling()
}
