package vmm

import (
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
)

// The device's one goroutine grows ranges before they need it and unmaps what
// retired once nothing uses it. It is there while there is something to do, and
// sparse: what has to be done at all it does in few, large steps, since mapping
// without a pause takes bandwidth from running copies.
type worker struct {
	running bool          // under Device.mu
	queue   []*Range      // to grow ahead of need, each once; under Device.mu
	kicked  chan struct{} // ends its rest
}

// What retired is looked at every few milliseconds: a growth that comes before
// takes it back for nothing, and releasing memory as fast as it is given up
// slows down running copies, since what is released is cleared.
const (
	minSweepInterval = 4 * time.Millisecond
	maxSweepInterval = 32 * time.Millisecond
)

// Ranges put themselves on the list without waking the goroutine, unless it is
// urgent: waking it is a system call in the middle of an append. So it looks for
// itself, less and less often, and stays a little when there is nothing to do.
const (
	minPollInterval = 250 * time.Microsecond
	maxPollInterval = 4 * time.Millisecond
	idleTimeout     = 20 * time.Millisecond
)

// queueGrowth has the goroutine grow g when it looks next.
func (d *Device) queueGrowth(g *Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, open := d.unclosed[g.r]; !open {
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

// kick ends the goroutine's rest.
func (w *worker) kick() {
	select {
	case w.kicked <- struct{}{}:
	default:
	}
}

// work runs until nothing is left to do. Growth comes first in each round: an append
// may be about to need it, and no caller waits for what retires.
func (d *Device) runWorker() {
	rest, look := minSweepInterval, minPollInterval
	began := time.Now()
	due, busy := began.Add(rest), began
	for {
		for g := d.nextGrowth(); g != nil; g = d.nextGrowth() {
			g.growAhead()
			look, busy = minPollInterval, time.Now()
		}
		if !began.Before(due) {
			rest = min(2*rest, maxSweepInterval)
			if progress, _ := sweepRetired(d); progress { // what fails is tried again
				rest, busy = minSweepInterval, time.Now()
			}
			due = time.Now().Add(rest)
		}
		d.workTime.Add(int64(time.Since(began)))
		if d.stopIfIdle(time.Since(busy) >= idleTimeout) {
			return
		}
		select {
		case <-d.worker.kicked:
		case <-time.After(min(look, max(0, time.Until(due)))):
			look = min(2*look, maxPollInterval)
		}
		began = time.Now()
	}
}

// nextGrowth is the next range to grow, or nil.
func (d *Device) nextGrowth() *Range {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := &d.worker
	if len(w.queue) == 0 {
		return nil
	}
	g := w.queue[0]
	w.queue = append(w.queue[:0], w.queue[1:]...)
	return g
}

// stopIfIdle ends the goroutine if nothing is left to do; unless idle, only once
// nothing is open that could bring more.
func (d *Device) stopIfIdle(idle bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.worker.queue) > 0 || len(d.retiring) > 0 || !idle && len(d.unclosed) > 0 {
		return false
	}
	d.worker.running = false
	d.wakeup.Broadcast()
	return true
}
