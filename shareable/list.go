package shareable

import (
	"context"
	"fmt"
	"net"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Listing is an object as an owner lists it.
type Listing struct {
	Name   string
	Len    uint64 // bytes published as the owner answered
	Sealed bool
}

// List says what the owner who listens at path has published, in the order in
// which that was. The errors are those of Attach.
func List(ctx context.Context, path string, dev *vmm.Device, o AttachOptions) ([]Listing, error) {
	all, err := listObjects(ctx, path, dev, o)
	if err != nil {
		return nil, fmt.Errorf("list %q: %w", path, err)
	}
	return all, nil
}

func listObjects(ctx context.Context, path string, dev *vmm.Device, o AttachOptions) ([]Listing, error) {
	if ctx == nil {
		return nil, fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	o, err := o.resolve(dev)
	if err != nil {
		return nil, err
	}
	conn, err := connect(ctx, path, o)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // all has been read
	all, err := listOver(ctx, conn, &handshake{opts: o, dev: dev})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return all, err
}

func listOver(ctx context.Context, conn *net.UnixConn, j *handshake) (all []Listing, err error) {
	if err := j.checkPeer(ctx, conn); err != nil {
		return nil, err
	}
	defer j.stopAbort()
	if err := j.exchangeHello(ctx); err != nil {
		return nil, err
	}
	var after uint64
	for request := uint32(1); ; request++ {
		if err := j.c.Write(wire.TypeList, request, 0, wire.List{After: after}.Append(nil)); err != nil {
			return nil, j.connError(err)
		}
		page, err := j.readListed(ctx, request)
		if err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			if e.ID <= after {
				return nil, fmt.Errorf("%w: object %d is listed after %d", ErrProtocol, e.ID, after)
			}
			after = e.ID
			all = append(all, Listing{Name: e.Name, Len: e.Length, Sealed: e.State == wire.StateSealed})
		}
		switch {
		case !page.More:
			return all, nil
		case len(page.Entries) == 0 || len(all) > maxListed:
			return nil, fmt.Errorf("%w: a list of %d objects that goes on", ErrProtocol, len(all))
		}
	}
}

// maxListed is more than an owner has.
const maxListed = 1 << 16

// listed reads one answer.
func (j *handshake) readListed(ctx context.Context, request uint32) (wire.Listed, error) {
	f, err := j.readFrame(ctx, wire.TypeListed, request)
	if err != nil {
		return wire.Listed{}, err
	}
	defer f.Close() //nolint:errcheck // no descriptors come with a list
	page, err := wire.DecodeListed(f.Payload)
	return page, wireError(err)
}
