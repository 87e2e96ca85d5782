package store

import (
	"context"
	"errors"
	"os"
	"time"
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

// confirm asks the server whether the lease is there still, if that is in doubt: then another Writer
// may have the object, and no one sees what the page says.
func (w *Writer) confirm(ctx context.Context) error {
	if !w.isInDoubt() {
		return nil
	}
	doubts := w.doubts.Load() // of a later one it is asked again
	err := w.mapped(ctx)
	if err == nil {
		w.confirmed.Store(doubts)
		return nil
	}
	if over := w.outcome(0, nil); over != nil { // a Seal or a Close has ended it
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
