package shareable

import (
	"context"
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Reattach repeats the Attach that made old, if old no longer follows its owner: the owner was
// started again, say. It returns the new View and true. While old.Err is nil, it returns old and
// false.
//
// Nothing carries over to a new View. It has an address, a Len and a Generation of its own, and
// after a restart another Instance.
//
// The caller must Close both. Memory that old has mapped can be read, and stays allocated, until
// old is closed. That may also be before Reattach.
//
// If it cannot attach, Reattach returns old, false, and an error as Attach does: ErrOwnerGone or
// ErrNotFound until the owner has published again. If old was attached with AttachOptions.Wait,
// Reattach waits for that. An object attached by its ID is not found on another server, because
// that may have given the ID to another object. Reattach returns vmm.ErrInvalid for a View that
// Attach did not make.
func Reattach(ctx context.Context, old *View) (v *View, fresh bool, err error) {
	if old == nil {
		return nil, false, fmt.Errorf("attach again: %w", errNoView)
	}
	if old.Err() == nil {
		return old, false, nil
	}
	if old.path == "" {
		return old, false, fmt.Errorf("attach to %q again: %w: Attach has not made this view", old.Name(), vmm.ErrInvalid)
	}
	v, err = Attach(ctx, old.path, old.obj.Name, old.dev, old.opts)
	if err != nil {
		return old, false, err
	}
	if _, isID := wire.ParseIDName(old.obj.Name); isID && v.Instance() != old.Instance() {
		err = fmt.Errorf("attach to %q again: %w: the server that had it is gone", old.Name(), ErrNotFound)
		return old, false, errors.Join(err, v.Close())
	}
	v.asked = old.asked
	return v, true, nil
}
