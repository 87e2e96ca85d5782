package vmm

import (
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/internal/frames"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// The device's one goroutine grows ranges before they need it and unmaps what
// retired once nothing uses it. It is there while there is something to do, and
// sparse: what has to be done at all it does in few, large steps, since mapping
// without a pause takes bandwidth from running copies.
type worker struct {
	running  bool          // under Device.mu
	queue    []*Range      // to grow ahead of need, each once; under Device.mu
	failures []error       // to log; under Device.mu
	kicked   chan struct{} // wakes it
	logging  atomic.Bool   // it is in the logger's handler
}

// The sweep interval: how often what has retired is looked at. A growth that comes before
// takes it back for nothing, and releasing memory as fast as it is given up slows down
// running copies, since what is released is cleared.
const (
	minSweepInterval = 4 * time.Millisecond
	maxSweepInterval = 32 * time.Millisecond
)

// queueGrowth has the goroutine grow g.
func (d *Device) queueGrowth(g *Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, listed := d.unclosed[g.r]; !listed {
		return // a Close has overtaken the Grow, and would not wait for the goroutine
	}
	d.worker.queue = append(d.worker.queue, g)
	d.wakeWorkerLocked()
}

// wakeWorkerLocked has the goroutine look at its queue at once. It needs d.mu.
func (d *Device) wakeWorkerLocked() {
	if d.worker.running {
		d.worker.kick()
	}
	d.startWorkerLocked()
}

// startWorkerLocked starts the goroutine if it is not running. It needs d.mu.
func (d *Device) startWorkerLocked() {
	invariants.Held(&d.mu)
	if w := &d.worker; !w.running && !d.state.parent.hooks.noWorker {
		w.running = true
		go d.runWorker()
	}
}

// kick wakes the goroutine.
func (w *worker) kick() {
	select {
	case w.kicked <- struct{}{}:
	default:
	}
}

// runWorker runs until nothing is left to do. It looks at the queue whenever it is kicked, and
// sweeps at the end of each sweep interval, which doubles up to its maximum while a sweep finds
// nothing to unmap, and is the minimum again once one did.
func (d *Device) runWorker() {
	interval := minSweepInterval
	awake := time.Now() // since when: what is counted as work
	nextSweep := awake.Add(interval)
	var growths []*Range
	logged := "" // the text of the last failure of a sweep
	for {
		// A growth takes long, and whoever has been made ready last runs first on a thread.
		// So those whom the same change has woken go before.
		runtime.Gosched()
		// Growth first: an append may be about to need it, and no caller waits for what
		// retires.
		growths = d.takeGrowths(growths)
		for _, g := range growths {
			d.logFailure(g.growAhead())
		}
		if !awake.Before(nextSweep) {
			interval = min(2*interval, maxSweepInterval)
			progress, err := false, d.state.syncFills()
			if err == nil {
				// Other ranges wait for this goroutine, so it waits for no lock: it comes again.
				progress, err = sweepRetired(d, (*lock.Mutex).TryLock)
			}
			if progress {
				interval = minSweepInterval
			}
			// What fails is tried again, and logged once.
			if err != nil && err.Error() != logged {
				logged = err.Error()
				d.logFailure(err)
			}
			nextSweep = time.Now().Add(interval)
		}
		d.logFailures()
		d.workTime.Add(int64(time.Since(awake)))
		if d.stopIfDone() {
			return
		}
		select {
		case <-d.worker.kicked:
		case <-time.After(time.Until(nextSweep)):
		}
		awake = time.Now()
	}
}

// SetLogger logs failures that no caller sees: of growth ahead, and of unmapping that a Clip has left to
// the device's goroutine. Both are tried again. With nil, the default, nothing is logged. The device's
// goroutine calls the logger's handler, with no lock held. The handler may call and close the device and
// what is open on it. A slow handler delays that goroutine.
func (d *Device) SetLogger(l *slog.Logger) {
	if d != nil {
		d.logger.Store(l)
	}
}

// reportFailure has the goroutine log a failure of another one that no caller sees.
func (d *Device) reportFailure(err error) {
	if d.logger.Load() == nil || err == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.worker.failures = append(d.worker.failures, err)
	d.wakeWorkerLocked()
}

// logFailures logs what was reported.
func (d *Device) logFailures() {
	d.mu.Lock()
	all := d.worker.failures
	d.worker.failures = nil
	d.mu.Unlock()
	for _, err := range all {
		d.logFailure(err)
	}
}

// logFailure logs err, if there is one. The caller is the device's goroutine and holds no lock.
func (d *Device) logFailure(err error) {
	if l := d.logger.Load(); l != nil && err != nil {
		d.worker.logging.Store(true)
		callLogger(l, d.name, err)
		d.worker.logging.Store(false)
	}
}

// callLogger is a frame that inLogger finds.
//
//go:noinline
func callLogger(l *slog.Logger, device string, err error) {
	l.Warn("the device's goroutine", "device", device, "error", err)
}

// inLogger reports whether the logger's handler, in the device's goroutine, has called this.
func (w *worker) inLogger() bool { return w.logging.Load() && frames.CalledBy(callLogger) }

// takeGrowths takes the ranges to grow off the queue, which goes on in the memory of spare.
func (d *Device) takeGrowths(spare []*Range) []*Range {
	clear(spare)
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.worker.queue
	d.worker.queue = spare[:0]
	return all
}

// stopIfDone ends the goroutine if nothing is left to do.
func (d *Device) stopIfDone() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.worker.queue) > 0 || len(d.worker.failures) > 0 || len(d.retiring) > 0 {
		return false
	}
	d.worker.running = false
	d.wakeup.Broadcast()
	return true
}
