package shareable

import (
	"context"
	"fmt"

	"github.com/cuvmm/cuvmm/internal/errtext"
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
func List(ctx context.Context, path string, dev *vmm.Device, o AttachOptions) (_ []Listing, err error) {
	defer errtext.Wrapf(&err, "list %q", path)
	var all []Listing
	err = connectFirst(ctx, firstTries, func() error {
		h, err := openHandshake(ctx, path, dev, o)
		if err != nil {
			return err
		}
		// The list is read only once the goroutine has reported: it may go on after an error.
		var listed []Listing
		if err = h.c.start(ctx, func() (err error) { listed, err = h.list(); return err }, nil); err == nil {
			all = listed
		}
		return err
	})
	return all, err
}

// list sends LIST until the owner says that there are no more objects.
func (h *handshake) list() (all []Listing, err error) {
	if err := h.exchangeHello(); err != nil {
		return nil, err
	}
	// One reply holds only as many objects as a frame does, so each request asks
	// for those after the last id.
	var after uint64
	for request := uint32(1); ; request++ {
		if err := h.write(wire.TypeList, request, wire.List{After: after}.Append(nil)); err != nil {
			return nil, err
		}
		f, err := h.readFrame(wire.TypeListed, request)
		if err != nil {
			return nil, err
		}
		page, err := wire.DecodeListed(f.Payload)
		if err != nil {
			return nil, wireError(err)
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
