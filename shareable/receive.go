package shareable

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Receive makes a view of what the other end of conn sends with Send: memory
// that no longer grows. All of it is there when Receive returns, and the view
// needs the sender no more. The connection, of the kind "unixpacket", stays the
// caller's and is not closed; after an error it is of no more use. The other end
// may take Timeout for each step, and ctx bounds the whole.
// The caller must Close the View.
func Receive(ctx context.Context, conn *net.UnixConn, dev *vmm.Device, o AttachOptions) (*View, error) {
	if conn == nil {
		return nil, receiveFail(fmt.Errorf("%w: no connection", vmm.ErrInvalid))
	}
	o, err := o.resolve(dev)
	if err != nil {
		return nil, receiveFail(err)
	}
	j := handshake{opts: o, dev: dev}
	if err := j.checkPeer(ctx, conn); err != nil {
		return nil, receiveFail(err)
	}
	v, err := j.receive(ctx)
	if done := j.clearDeadlines(ctx); done != nil {
		err = done
	}
	if err != nil {
		_ = v.Close() // nothing uses it
		return nil, receiveFail(err)
	}
	return v, nil
}

func receiveFail(err error) error { return fmt.Errorf("receive: %w", err) }

// receive may answer a view beside an error.
func (j *handshake) receive(ctx context.Context) (*View, error) {
	if err := j.exchangeHello(ctx); err != nil {
		return nil, err
	}
	obj, f, err := j.readObject(ctx, 0)
	if err != nil {
		return nil, err
	}
	_ = f.Close() // the page of what is sealed says nothing new
	if obj.State != wire.StateSealed {
		return nil, fmt.Errorf("%w: sent memory that is not sealed", ErrProtocol)
	}
	v, err := j.newView(obj, nil)
	if err != nil {
		return nil, err
	}
	err = v.serveUntilDone(ctx, j)
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

// serveUntilDone maps what comes before DONE.
func (v *View) serveUntilDone(ctx context.Context, j *handshake) error {
	for {
		if err := j.extendDeadline(ctx); err != nil {
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
			return j.connError(err)
		}
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
