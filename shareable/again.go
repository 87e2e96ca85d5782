package shareable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// If a keeper has started the server, another one takes its place when it ends. A client recognises
// it by the instance in HELLO, so only clients that were connected before can go on.

const (
	againTime   = 30 * time.Second       // how long a server may take to begin
	againSpread = 20 * time.Millisecond  // so that not all connect at the same moment
	againPause  = 500 * time.Millisecond // the longest between two tries
)

// errLost is that the owner's connection has ended, and that it has not said why.
var errLost = fmt.Errorf("%w: the connection has ended", ErrOwnerGone)

// isKept reports whether another process replaces the owner when it ends.
func isKept(owner wire.Hello, path string) bool {
	return path != "" && owner.Features&wire.FeatureKept != 0
}

// firstTries is how often a connection is made that ends before its first reply.
const firstTries = 3

// connectFirst makes the first connection to a server, by f, in at most so many tries. A connection that
// ends before its first reply may have ended with a server that another one replaces. If there is no other,
// the next try says so.
func connectFirst(ctx context.Context, most int, f func() error) error {
	for tries := 1; ; tries++ {
		err := f()
		if tries == most || !errors.Is(err, errLost) {
			return err
		}
		select {
		case <-time.After(rand.N(againSpread)):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// reconnect connects again to the server at path. f runs, once HELLO is exchanged, in the goroutine
// that reads the connection, and after it next. It gives up when ctx ends, when the process that keeps the
// socket ends, after againTime, or when no descriptor was free for the limit of short.
func reconnect(ctx context.Context, path string, dev *vmm.Device, o AttachOptions, instance [16]byte, short *shortage, f func(*handshake) error, next func(*handshake)) error {
	ctx, cancel := context.WithTimeout(ctx, againTime)
	defer cancel()
	var lacked error // why the last try found no descriptor free
	for pause := rand.N(againSpread); ; pause = min(2*pause+time.Millisecond, againPause) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w: no other server has begun: %w", ErrOwnerGone, cmp.Or(lacked, ctx.Err()))
		}
		h, err := openHandshake(ctx, path, dev, o)
		if err == nil {
			err = h.c.start(ctx, func() error {
				if err := h.exchangeHello(); err != nil {
					return err
				}
				if h.peer.Instance != instance {
					return fmt.Errorf("%w: what is there now has nothing of it", errNotSame)
				}
				return f(h)
			}, func() { next(h) })
		}
		if !mayRetry(err) {
			return err
		}
		if lacked = nil; lacksFDs(err) {
			lacked = err
			short.lacks(wire.TypeObject)
			if err := short.over(err); err != nil {
				return err
			}
		}
	}
}

// errNotSame is that a server has not gone on with what there was.
var errNotSame = fmt.Errorf("%w: another server", ErrOwnerGone)

// mayRetry reports whether it may help to connect again.
func mayRetry(err error) bool {
	var none *noServerError
	switch {
	case err == nil, errors.As(err, &none), errors.Is(err, errNotSame), errors.Is(err, ErrNotFound):
		return false
	}
	return errors.Is(err, ErrOwnerGone) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, vmm.ErrLimit) || errors.Is(err, vmm.ErrBusy)
}
