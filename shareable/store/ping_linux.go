package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/vmm"
)

// KeeperPID is the process that has made the socket of a store: its Keeper, or a service manager. path is as
// for Listen, uids as in ClientOptions. It needs no token. It returns vmm.ErrNotSupported if the process is in
// another namespace of process ids, and else the errors of Connect.
func KeeperPID(ctx context.Context, path string, uids []uint32) (pid int, err error) {
	defer errtext.Wrapf(&err, "find the keeper")
	if ctx == nil {
		return 0, errNoContext
	}
	err = withLimit(ctx, 0, func(ctx context.Context) error {
		pid, err = sharing.Keeper(ctx, cmp.Or(path, defaultName), uids)
		return err
	})
	if err == nil && pid <= 0 {
		err = fmt.Errorf("%w: the keeper is in another namespace of process ids", vmm.ErrNotSupported)
	}
	return pid, err
}

// Ping asks the server at path, which is as for Listen, whether it replies: a request goes through
// all of it. If a server ends meanwhile that another one replaces, it asks that one. It needs no device, and
// loads no driver. Of the options Token, UIDs and Timeout count. A Timeout of 0 is the time to ctx's deadline,
// or 5 s if it has none. The errors are those of Connect.
func Ping(ctx context.Context, path string, o ClientOptions) (err error) {
	defer errtext.Wrapf(&err, "ping store")
	if ctx == nil {
		return errNoContext
	}
	if o.Timeout < 0 {
		return errTimeout(o.Timeout)
	}
	return withLimit(ctx, o.Timeout, func(ctx context.Context) error {
		return sharing.Ping(ctx, cmp.Or(path, defaultName), o.Token, o.UIDs)
	})
}

// withLimit calls f within a time limit. 0 is the time to ctx's deadline, or defaultTimeout if it has none.
func withLimit(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	if _, ends := ctx.Deadline(); limit == 0 && !ends {
		limit = defaultTimeout
	}
	limited := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	err := f(limited)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // the limit's end
		return fmt.Errorf("%w: no reply in time", os.ErrDeadlineExceeded)
	}
	return err
}
