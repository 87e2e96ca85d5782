package store

import (
	"cmp"
	"context"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/shareable"
)

// Ping asks the server at path, which is as for Listen, whether it replies: a request goes through
// all of it. It needs no device, and loads no driver. Of the options Token, UIDs and Timeout count;
// with a Timeout of 0 a deadline of ctx takes its place. The errors are those of Connect.
func Ping(ctx context.Context, path string, o ClientOptions) (err error) {
	if ctx == nil {
		return errNoContext
	}
	defer errtext.Wrapf(&err, "ping store")
	if o.Timeout < 0 {
		return errTimeout(o.Timeout)
	}
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Timeout)
		defer cancel()
	}
	return shareable.ForStore().Ping(ctx, cmp.Or(path, defaultName), o.Token, o.UIDs)
}
