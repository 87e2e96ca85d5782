package store

import (
	"cmp"
	"context"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/shareable"
)

// Ping asks the server at path, which is as for Listen, whether it replies: a request goes through
// all of it. It needs no device, and loads no driver. The errors are those of Connect.
func Ping(ctx context.Context, path string, o PingOptions) (err error) {
	if ctx == nil {
		return errNoContext
	}
	defer errtext.Wrapf(&err, "ping store")
	return shareable.ForStore().Ping(ctx, cmp.Or(path, defaultName), o.Token, o.UIDs)
}
