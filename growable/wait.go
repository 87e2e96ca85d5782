package growable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/vmm"
)

// waiter is a Source that knows why a length will not be reached, as a shareable.View does.
type waiter interface {
	Wait(ctx context.Context, n uint64) error
}

// limited is a Source that knows the most bytes it can have.
type limited interface{ Max() uint64 }

// errEnded is that a Source has ended, and cannot say why.
var errEnded = fmt.Errorf("%w: no more can come", vmm.ErrClosed)

// Wait waits until there are n elements. If that cannot happen any more, it returns the error of the
// Source's own Wait, which a shareable.View has. For a Source without one it returns vmm.ErrBounds if n
// elements are more than its Max. Once that Source's Changed stays closed, Wait returns the error of its
// ReadAt, or vmm.ErrClosed. If ctx ends first, Wait returns ctx's error. Safe for concurrent use.
func (r *Reader[T]) Wait(ctx context.Context, n int) error { return r.base().wait(ctx, n) }

// Wait waits until there are so many rows. The errors are those of Reader.Wait. Safe for
// concurrent use.
func (r *RowsReader[T]) Wait(ctx context.Context, rows int) error { return r.base().wait(ctx, rows) }

func (c *counted) wait(ctx context.Context, n int) (err error) {
	if c == nil || c.src == nil {
		return fmt.Errorf("wait for %d elements: %w", n, errNothing)
	}
	defer errtext.Wrapf(&err, "wait for %d %s", n, c.noun)
	if ctx == nil {
		return fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	if n < 0 {
		return fmt.Errorf("%w: fewer than none", vmm.ErrInvalid)
	}
	over, size := bits.Mul64(uint64(n), c.stride)
	if over != 0 || size > math.MaxInt64 {
		return fmt.Errorf("%w: more than 2^63-1 bytes", vmm.ErrBounds)
	}
	if w, ok := c.src.(waiter); ok {
		return w.Wait(ctx, size)
	}
	if m, ok := c.src.(limited); ok && size > m.Max() {
		return fmt.Errorf("%w: %d bytes, over a maximum of %d", vmm.ErrBounds, size, m.Max())
	}
	var before uint64
	for unchanged := 0; ; {
		changed := c.src.Changed() // before Len, so that no change is missed
		now := c.src.Len()
		if now >= size {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		select {
		case <-changed:
			if now != before {
				unchanged, before = 0, now
			} else if unchanged++; unchanged == endedAfter {
				return c.whyEnded()
			}
			continue
		default:
			unchanged, before = 0, now
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// endedAfter is how often in a row Changed is closed as soon as it is called, without another
// length, before that counts as its end. A change may fall between two calls, but not each time.
const endedAfter = 100

// whyEnded is the error of a Source that has ended.
func (c *counted) whyEnded() error {
	if _, err := c.src.ReadAt(nil, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return errEnded
}
