package shareable

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Receive makes a View of the memory that the other end of conn sends with Send.
// All of it is mapped when Receive returns; it does not grow, and the View does
// not need the sender any more. conn is of the kind "unixpacket"; Receive does not
// close it, and after an error it cannot be used any more. Timeout limits each
// step, and ctx the whole. The caller must Close the View.
func Receive(ctx context.Context, conn *net.UnixConn, dev *vmm.Device, o AttachOptions) (*View, error) {
	if conn == nil {
		return nil, receiveFail(fmt.Errorf("%w: no connection", vmm.ErrInvalid))
	}
	o, err := o.resolve(dev)
	if err != nil {
		return nil, receiveFail(err)
	}
	h := handshake{opts: o, dev: dev}
	if err := h.checkPeer(ctx, conn); err != nil {
		return nil, receiveFail(err)
	}
	v, err := h.receive(ctx)
	// If ctx ended, its deadline in the past may be set: the connection is lost.
	if canceled := h.clearDeadlines(ctx); canceled != nil {
		err = canceled
	}
	if err != nil {
		_ = v.Close() // nothing uses it yet
		return nil, receiveFail(err)
	}
	return v, nil
}

func receiveFail(err error) error { return fmt.Errorf("receive: %w", err) }

// receive maps one object. It can return a View together with an error; the caller
// must Close it.
func (h *handshake) receive(ctx context.Context) (*View, error) {
	if err := h.exchangeHello(ctx); err != nil {
		return nil, err
	}
	obj, f, err := h.readObject(ctx, 0)
	if err != nil {
		return nil, err
	}
	_ = f.Close() // a sealed object needs no control page: its length is final
	if obj.State != wire.StateSealed {
		return nil, fmt.Errorf("%w: sent memory that is not sealed", ErrProtocol)
	}
	v, err := h.newView(obj, nil)
	if err != nil {
		return nil, err
	}
	// The frames are handled here rather than by View.follow: no goroutine reads
	// the connection, which stays the caller's.
	err = v.readUntilDone(ctx, h)
	if err == nil && v.mapped < obj.Length {
		err = fmt.Errorf("%w: sent %d bytes of %d", ErrProtocol, v.mapped, obj.Length)
	}
	if errors.Is(err, ErrProtocol) {
		v.sendError(err)
	}
	v.conn = nil
	v.detach(ErrOwnerGone)
	return v, err
}

// readUntilDone handles frames until DONE.
func (v *View) readUntilDone(ctx context.Context, h *handshake) error {
	for {
		if err := h.extendDeadline(ctx); err != nil {
			return err
		}
		f, err := v.conn.Read()
		if errors.Is(err, wire.ErrTruncated) {
			if err := v.requestSmallerFrames(f, wireError(err)); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return h.connError(err)
		}
		// Frames mean what they mean to an attached View, except that sealed memory
		// is never retired.
		done := f.Type == wire.TypeDone
		switch {
		case done:
		case f.Type == wire.TypeRetire:
			err = fmt.Errorf("%w: sealed memory is taken back", ErrProtocol)
		default:
			err = v.handle(f)
		}
		_ = f.Close()
		if done || err != nil {
			return err
		}
	}
}
