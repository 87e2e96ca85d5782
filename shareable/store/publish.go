package store

import (
	"cmp"
	"context"
	"errors"
	"os"
	"time"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// again is called when another server has taken the place of the one before. A lease that has begun
// is there still, unless the Writer comes too late.
func (w *Writer) again() {
	select {
	case <-w.opened:
	case <-w.ctx.Done():
		return
	}
	err := w.mapped(w.ctx)
	for errors.Is(err, os.ErrDeadlineExceeded) && w.conn.Err() == nil { // that one has ended, too
		err = w.mapped(w.ctx)
	}
	if err != nil {
		w.fail(err)
		return
	}
	w.wake()
}

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
		switch err := w.Flush(w.ctx); {
		case err == nil:
		case w.Err() != nil:
			return
		case errors.Is(err, vmm.ErrClosed), errors.Is(err, vmm.ErrDeviceLost):
			w.fail(err)
			return
		default: // a capture, say
			timer = time.After(retryDelay)
		}
	}
}

// publishExclusive publishes the range's length, inside runExclusive:
//
//  1. wait until the bytes below it are written;
//  2. store it on the control page.
//
// hold keeps it from going back: it could come again with bytes that are not written yet.
func (w *Writer) publishExclusive(ctx context.Context) error {
	if err := w.Err(); err != nil {
		return err
	}
	w.page.Queued(w.r.Len())
	n, err := w.r.WaitWritten(ctx)
	if err != nil {
		return err
	}
	w.publishLenExclusive(n)
	return nil
}

// settleExclusive publishes what is the object's last length, for cause, inside runExclusive. A call that
// has raised the length has reported that before, or waits, and looks whether it came in time.
func (w *Writer) settleExclusive(ctx context.Context, cause error) error {
	w.mu.Lock()
	w.over = cause
	w.mu.Unlock()
	err := w.publishExclusive(ctx)
	if err != nil {
		w.reopen(cause)
	}
	return err
}

// reopen undoes settleExclusive, for a call that has failed.
func (w *Writer) reopen(cause error) {
	w.mu.Lock()
	if errors.Is(w.over, cause) { // else Close has come meanwhile
		w.over = nil
	}
	w.mu.Unlock()
	w.wakeFollow()
}

// appended is the outcome of a call that has raised the length: an error if it came too late.
func (w *Writer) appended() error {
	if w.tooLate() == nil {
		return nil
	}
	select { // what settles may fail
	case w.exclusive <- struct{}{}:
		<-w.exclusive
	case <-w.ctx.Done():
	}
	if n := w.r.Len(); n > 0 && n <= w.published.Load() { // a closed range has none
		return nil
	}
	return w.tooLate()
}

// tooLate is why what is appended from now on is not in the object; nil if it is.
func (w *Writer) tooLate() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(w.over, w.err)
}

// publishLenExclusive stores the length n on the page and has the readers woken, inside runExclusive.
func (w *Writer) publishLenExclusive(n uint64) {
	w.published.Store(n)
	w.page.Publish(n)
	w.wake()
}

// lenRaised publishes a length of which all bytes are written, in the call that raises it, which has
// locks of the range, and reports whether that is all: a lease that is to be confirmed is for follow.
func (w *Writer) lenRaised(n uint64) (done bool) {
	select {
	case w.exclusive <- struct{}{}:
	default: // the range's call must not wait
		return false
	}
	defer func() { <-w.exclusive }()
	if w.Err() != nil {
		return false
	}
	w.publishLenExclusive(n)
	return !w.mayBeLate()
}

// confirm asks the server whether the lease is there still, if this process may have been stopped:
// then another one may have the object, and no one sees what the page says.
func (w *Writer) confirm(ctx context.Context) error {
	if !w.mayBeLate() {
		return nil
	}
	beats := w.lateBeats.Load() // a later one asks again
	err := w.mapped(ctx)
	switch {
	case err == nil:
		w.confirmed.Store(beats)
	case ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded):
		w.fail(err)
	}
	return err
}

// lateBeat is when a beat is late: the process was stopped, or had no processor.
const lateBeat = 1500 * time.Millisecond

// mayBeLate reports whether a beat was late since the lease was last confirmed.
func (w *Writer) mayBeLate() bool {
	if last := w.lastBeat.Load(); last != 0 && time.Since(started)-time.Duration(last) > lateBeat {
		w.lateBeats.Add(1)
	}
	return w.lateBeats.Load() != w.confirmed.Load()
}

// started is what times of beats count from: by the monotonic clock, which goes on while the
// process is stopped.
var started = time.Now()

// beat shows once a second that the process runs.
func (w *Writer) beat() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		w.mayBeLate() // before the beat, which hides it
		w.lastBeat.Store(int64(time.Since(started)))
		w.page.Beat()
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			return
		}
	}
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
