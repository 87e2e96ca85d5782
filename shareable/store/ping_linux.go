package store

import (
	"cmp"
	"context"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
)

// Ping asks the server at path, which is as for Listen, whether it replies: a request goes through
// all of it. It needs no device, and loads no driver. Of the options Token, UIDs and Timeout count.
// A Timeout of 0 is the time to ctx's deadline, or 5 s if it has none. The errors are those of Connect.
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
	return shareable.ForStore(serve.Key{}).Ping(ctx, cmp.Or(path, defaultName), o.Token, o.UIDs)
}
