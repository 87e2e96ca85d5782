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
	if pid, err = sharing.Keeper(ctx, cmp.Or(path, defaultName), uids); err == nil && pid <= 0 {
		err = fmt.Errorf("%w: the keeper is in another namespace of process ids", vmm.ErrNotSupported)
	}
	return pid, err
}

// Ping asks the server at path, which is as for Listen, whether it replies: a request goes through
// all of it. It needs no device, and loads no driver. Of the options Token, UIDs and Timeout count.
// A Timeout of 0 is the time to ctx's deadline, or 5 s if it has none. The errors are those of Connect.
func Ping(ctx context.Context, path string, o ClientOptions) (err error) {
	defer errtext.Wrapf(&err, "ping store")
	if ctx == nil {
		return errNoContext
	}
	if o.Timeout < 0 {
		return errTimeout(o.Timeout)
	}
	limited := ctx
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, o.Timeout)
		defer cancel()
	}
	err = sharing.Ping(limited, cmp.Or(path, defaultName), o.Token, o.UIDs)
	if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	// The end of ctx is told from that of Timeout.
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return fmt.Errorf("%w: no reply in time", os.ErrDeadlineExceeded)
}
