package shareable

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Receive makes a View of the memory that the other end of conn sends with Send. All of it is
// mapped when Receive returns. The View does not grow, and does not need the sender any more.
//
// conn is of the kind "unixpacket". Receive does not close it, but shuts it down after an error:
// then it cannot be used any more. Timeout limits each step, and ctx the whole. Limits and locks
// are as for Attach. The caller must Close the View.
func Receive(ctx context.Context, conn *net.UnixConn, dev *vmm.Device, o AttachOptions) (_ *View, err error) {
	defer errtext.Wrapf(&err, "receive")
	switch {
	case conn == nil:
		return nil, fmt.Errorf("%w: no connection", vmm.ErrInvalid)
	case ctx == nil:
		return nil, fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	if o, err = o.resolve(dev); err != nil {
		return nil, err
	}
	if err := leftBehind.admit(ctx, o.Timeout); err != nil {
		return nil, err
	}
	// The goroutine reads a duplicate: a close of conn would wait for its reads.
	own, err := duplicate(conn)
	if err != nil {
		return nil, err
	}
	h, err := newHandshake(own, dev, o)
	if err != nil {
		return nil, err
	}
	h.c.keep = true
	return h.run(ctx, h.receive, nil)
}

// duplicate returns another descriptor of the same socket.
func duplicate(conn *net.UnixConn) (*net.UnixConn, error) {
	f, err := conn.File()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", vmm.ErrInvalid, err)
	}
	defer f.Close() //nolint:errcheck // the other two descriptors stay
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	own, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w: a connection of type %T", vmm.ErrInvalid, c), c.Close())
	}
	return own, nil
}

// receive maps one object.
func (h *handshake) receive() error {
	if err := h.exchangeHello(); err != nil {
		return err
	}
	// A sealed object needs neither page nor wakes: its length is final.
	obj, _, err := h.readObject(0, 0)
	if err != nil {
		return err
	}
	if obj.State != wire.StateSealed {
		return fmt.Errorf("%w: sent memory that is not sealed", ErrProtocol)
	}
	if err := h.c.work(func() error { return h.newView(obj, nil) }); err != nil {
		return err
	}
	// The frames are handled here rather than by View.follow: the connection stays the
	// caller's.
	v := h.view
	err = v.readUntilDone()
	if errors.Is(err, ErrProtocol) {
		v.sendError(err)
	}
	if err != nil {
		return err
	}
	return h.c.work(func() error {
		v.conn = nil
		v.detach(ErrOwnerGone)
		return nil
	})
}

// readUntilDone handles frames until DONE.
func (v *View) readUntilDone() error {
	for {
		done, err := v.handleNext()
		switch end := v.track.End(); {
		case err != nil:
			return err
		case !done:
		case end < v.obj.Length:
			return fmt.Errorf("%w: sent %d bytes of %d", ErrProtocol, end, v.obj.Length)
		default:
			return nil
		}
	}
}
