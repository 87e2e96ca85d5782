package store

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// wake has readers woken.
func (w *Writer) wake() {
	select {
	case w.wrote <- struct{}{}:
	default:
	}
}

// retryDelay is the pause before something is tried again that failed for the moment, when
// nothing says that it can work now.
const retryDelay = 2 * time.Millisecond

// wakeFollow has follow publish what has changed.
func (w *Writer) wakeFollow() {
	select {
	case w.changes <- struct{}{}:
	default:
	}
}

// follow publishes every change of the range until the Writer ends, but for those with which lenRaised
// is done.
func (w *Writer) follow() {
	var timer <-chan time.Time
	for {
		select {
		case <-w.changes:
		case <-timer:
		case <-w.conn.Ended():
			w.fail(w.conn.Err())
			return
		case <-w.ctx.Done():
			return
		}
		timer = nil
		n, err := w.publish(w.ctx)
		if err == nil && w.isInDoubt() {
			err = w.confirm(w.ctx, n)
		}
		switch {
		case err == nil:
		case errors.Is(err, errSealed), errors.Is(err, errWriterClosed), w.Err() != nil:
			return
		case errors.Is(err, vmm.ErrClosed), errors.Is(err, vmm.ErrDeviceLost):
			w.fail(err)
			return
		default: // a capture, say
			timer = time.After(retryDelay)
		}
	}
}

// publish publishes the length that the range has, and returns it.
func (w *Writer) publish(ctx context.Context) (n uint64, err error) {
	err = w.runExclusive(ctx, func(ctx context.Context) error {
		if err := w.checkCutOff(); err != nil {
			return err
		}
		err := w.publishExclusive(ctx)
		n = w.published.Load()
		return err
	})
	return n, err
}

// publishExclusive publishes the range's length, with exclusive:
//
//  1. wait until the bytes below it are written;
//  2. store it on the control page.
//
// hold keeps it from going back: it could come again with bytes that are not written yet.
func (w *Writer) publishExclusive(ctx context.Context) error {
	w.page.Queued(w.r.Len())
	n, err := w.r.WaitWritten(ctx)
	if err != nil {
		return err
	}
	w.publishLenExclusive(n)
	return nil
}

// publishLenExclusive stores the length n on the page and has the readers woken, with exclusive.
func (w *Writer) publishLenExclusive(n uint64) {
	w.published.Store(n)
	w.page.Publish(n)
	w.wake()
}

// lenRaised publishes a length of which all bytes are written, in the call that raises it, which has
// locks of the range, and reports whether that is all: a lease that is in doubt is for follow.
func (w *Writer) lenRaised(n uint64) (done bool) {
	select {
	case w.exclusive <- struct{}{}:
	default: // the range's call must not wait
		return false
	}
	defer func() { <-w.exclusive }()
	if w.checkCutOff() != nil {
		return false
	}
	w.publishLenExclusive(n)
	return !w.isInDoubt()
}

// settleExclusive publishes the last length, for a call that ends that for cause, with exclusive. A
// call that has raised the length has reported that before, or waits, and looks whether it came in time.
func (w *Writer) settleExclusive(ctx context.Context, cause error) error {
	if err := w.Err(); err != nil {
		return err
	}
	w.mu.Lock()
	w.cutOff = cause
	w.mu.Unlock()
	err := w.publishExclusive(ctx)
	if err != nil {
		w.unsettle(cause)
	}
	return err
}

// unsettle undoes settleExclusive, for a call that has failed.
func (w *Writer) unsettle(cause error) {
	w.mu.Lock()
	if errors.Is(w.cutOff, cause) { // else Close has come meanwhile
		w.cutOff = nil
	}
	w.mu.Unlock()
	w.wakeFollow()
}

// checkCutOff returns why no length is published any more; nil while they are.
func (w *Writer) checkCutOff() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(w.err, w.cutOff)
}

// outcome is the error of a call on the range that has raised the length to n, or returned err. What
// came too late for the object, or may have, is an error.
func (w *Writer) outcome(n uint64, err error) error {
	if w.checkCutOff() == nil {
		return err
	}
	select { // what settles may fail
	case w.exclusive <- struct{}{}:
		<-w.exclusive
	case <-w.ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil: // maybe no reader sees what was published last
		return w.err
	case w.cutOff == nil:
		return err
	case err == nil && n > 0 && n <= w.published.Load(): // n is 0 of a range that was closed meanwhile
		return nil
	}
	return w.cutOff
}

// Limits of WROTE, which costs the server a request: so many at once, and then one burst
// in each pause. Lengths that come meanwhile share the next one.
const (
	wroteBurst = 16
	wrotePause = time.Millisecond
)

// sendWrote has the server wake the readers after each change of the control page.
func (w *Writer) sendWrote() {
	var begun time.Time
	for left := 0; ; left-- {
		select {
		case <-w.wrote:
		case <-w.ctx.Done():
			return
		}
		if since := time.Since(begun); since >= wrotePause {
			begun, left = time.Now(), wroteBurst
		} else if left <= 0 {
			select {
			case <-time.After(wrotePause - since):
			case <-w.ctx.Done():
				return
			}
			begun, left = time.Now(), wroteBurst
		}
		if err := w.conn.Send(wire.TypeWrote, wire.Wrote{Object: w.id.Number}.Append(nil)); err != nil {
			if !errors.Is(err, shareable.ErrOwnerGone) { // else the end of the connection says more
				w.fail(err)
			}
			return
		}
	}
}
