package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cuvmm/cuvmm/shareable"
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
	err := w.askLease(w.ctx)
	for errors.Is(err, os.ErrDeadlineExceeded) && w.conn.Err() == nil { // that one has ended, too
		err = w.askLease(w.ctx)
	}
	if err != nil {
		w.fail(err)
		return
	}
	w.wake()
}

// askLease asks the server whether the lease is there still.
func (w *Writer) askLease(ctx context.Context) error {
	err := w.mapped(ctx)
	if errors.Is(err, vmm.ErrPermission) {
		return fmt.Errorf("%w: the lease has ended: %w", shareable.ErrOwnerGone, err)
	}
	return err
}

// confirm asks the server whether the lease is there still, after n bytes were published. If so they
// count: a server that ends a lease takes the length from the page. Else another Writer may have the
// object, and no one sees what the page says.
func (w *Writer) confirm(ctx context.Context, n uint64) error {
	doubts := w.doubts.Load() // of a later one it is asked again
	err := w.askLease(ctx)
	if err == nil {
		w.confirmed.Store(doubts)
		for old := w.counted.Load(); old < n && !w.counted.CompareAndSwap(old, n); old = w.counted.Load() {
		}
		return nil
	}
	over := w.outcome(0, nil) // a Seal or a Close has ended it
	switch {
	case errors.Is(over, errSealed) && n <= w.counted.Load():
		return nil
	case over != nil:
		return over
	}
	if ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		w.fail(err)
	}
	return err
}

// lateBeat is when a beat is late: the process was stopped, or had no processor.
const lateBeat = 1500 * time.Millisecond

// isInDoubt reports whether the lease may have ended since it was last confirmed.
func (w *Writer) isInDoubt() bool {
	if last := w.lastBeat.Load(); last != 0 && time.Since(started)-time.Duration(last) > lateBeat {
		w.doubts.Add(1)
	}
	return w.doubts.Load() != w.confirmed.Load()
}

// started is what times of beats count from: by the monotonic clock, which goes on while the
// process is stopped.
var started = time.Now()

// beat shows once a second that the process runs.
func (w *Writer) beat() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		w.isInDoubt() // before the beat, which hides it
		w.lastBeat.Store(int64(time.Since(started)))
		w.page.Beat()
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			return
		}
	}
}
