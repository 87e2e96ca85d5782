package vmm

import (
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
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

// The poll interval: how often the goroutine looks at its queue. Ranges put themselves there
// without waking it, unless it is urgent: waking it is a system call in the middle of an
// append. It ends once it has had nothing to do for idleTimeout.
const (
	minPollInterval = 250 * time.Microsecond
	maxPollInterval = 4 * time.Millisecond
	idleTimeout     = 20 * time.Millisecond
)

// queueGrowth has the goroutine grow g when it polls next.
func (d *Device) queueGrowth(g *Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, listed := d.unclosed[g.r]; !listed {
		return // a Close has overtaken the Grow, and would not wait for the goroutine
	}
	d.worker.queue = append(d.worker.queue, g)
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

// runWorker runs until nothing is left to do. It looks at the queue at the end of each poll
// interval and sweeps at the end of each sweep interval. Both double up to their maximum
// while there is nothing to do, and are the minimum again once there was something.
func (d *Device) runWorker() {
	sweepInterval, pollInterval := minSweepInterval, minPollInterval
	awake := time.Now() // since when: what is counted as work
	nextSweep, lastProgress := awake.Add(sweepInterval), awake
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
			pollInterval, lastProgress = minPollInterval, time.Now()
		}
		if !awake.Before(nextSweep) {
			sweepInterval = min(2*sweepInterval, maxSweepInterval)
			progress, err := false, d.state.syncFills()
			if err == nil {
				progress, err = sweepRetired(d, true)
			}
			if progress {
				sweepInterval, lastProgress = minSweepInterval, time.Now()
			}
			// What fails is tried again, and logged once.
			if err != nil && err.Error() != logged {
				logged = err.Error()
				d.logFailure(err)
			}
			nextSweep = time.Now().Add(sweepInterval)
		}
		d.logFailures()
		d.workTime.Add(int64(time.Since(awake)))
		if d.stopIfIdle(time.Since(lastProgress) >= idleTimeout) {
			return
		}
		// A sweep that is due comes in time however long the poll interval is by now.
		select {
		case <-d.worker.kicked:
		case <-time.After(min(pollInterval, max(0, time.Until(nextSweep)))):
			pollInterval = min(2*pollInterval, maxPollInterval)
		}
		awake = time.Now()
	}
}

// SetLogger logs failures that no caller sees: of growth ahead, and of unmapping what a Clip has
// left to the device's goroutine. Both are tried again. With nil, the default,
// nothing is logged. The device's goroutine calls the logger's handler, with no lock held. The
// handler may call and close the device and what is open on it. A slow one delays that goroutine.
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
	d.startWorkerLocked()
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
func (w *worker) inLogger() bool { return w.logging.Load() && calledBy(callLogger) }

// takeGrowths takes the ranges to grow off the queue, which goes on in the memory of spare.
func (d *Device) takeGrowths(spare []*Range) []*Range {
	clear(spare)
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.worker.queue
	d.worker.queue = spare[:0]
	return all
}

// stopIfIdle ends the goroutine if nothing is left to do; unless idle, only once
// nothing is open that could bring more.
func (d *Device) stopIfIdle(idle bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.worker.queue) > 0 || len(d.worker.failures) > 0 || len(d.retiring) > 0 || !idle && len(d.unclosed) > 0 {
		return false
	}
	d.worker.running = false
	d.wakeup.Broadcast()
	return true
}
