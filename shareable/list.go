package shareable

import (
	"context"
	"fmt"
	"net"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Listing describes a published object.
type Listing struct {
	Name   string
	Len    uint64 // bytes published when the owner replied
	Sealed bool
}

// List returns the objects that the server at path has published, in the order in
// which they were. The errors are those of Attach.
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

// listOver sends LIST until the owner says that there are no more objects.
func listOver(ctx context.Context, conn *net.UnixConn, h *handshake) (all []Listing, err error) {
	if err := h.checkPeer(ctx, conn); err != nil {
		return nil, err
	}
	defer h.stopAbort()
	if err := h.exchangeHello(ctx); err != nil {
		return nil, err
	}
	// One reply holds only as many objects as a frame does, so each request asks
	// for those after the last id.
	var after uint64
	for request := uint32(1); ; request++ {
		if err := h.c.Write(wire.TypeList, request, 0, wire.List{After: after}.Append(nil)); err != nil {
			return nil, h.connError(err)
		}
		page, err := h.readListed(ctx, request)
		if err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			if e.ID <= after { // else an owner could keep this loop running
				return nil, fmt.Errorf("%w: object %d is listed after %d", ErrProtocol, e.ID, after)
			}
			after = e.ID
			all = append(all, Listing{Name: e.Name, Len: e.Length, Sealed: e.State == wire.StateSealed})
		}
		switch {
		case !page.More:
			return all, nil
		case len(page.Entries) == 0 || len(all) > maxListed:
			return nil, fmt.Errorf("%w: a list of %d objects does not end", ErrProtocol, len(all))
		}
	}
}

// maxListed is more than an owner has.
const maxListed = 1 << 16

// readListed reads LISTED.
func (h *handshake) readListed(ctx context.Context, request uint32) (wire.Listed, error) {
	f, err := h.readFrame(ctx, wire.TypeListed, request)
	if err != nil {
		return wire.Listed{}, err
	}
	defer f.Close() //nolint:errcheck // no descriptors come with a list
	page, err := wire.DecodeListed(f.Payload)
	return page, wireError(err)
}
