package vmm

import "time"

// The device's one goroutine grows ranges before they need it and unmaps what
// retired once nothing uses it. It is there while there is something to do, and
// sparse: unbroken mapping in the background costs running copies a tenth of
// their speed. What has to be done at all it does in few, large steps.
type worker struct {
	running bool          // under Device.mu
	wanted  []*Range      // to grow ahead of need, each once; under Device.mu
	kick    chan struct{} // ends its rest
}

// How long the goroutine rests before it asks again whether what retired can be
// unmapped: longer and longer while nothing happens. A growth that comes
// meanwhile takes retiring memory back for nothing.
const (
	firstRest = 500 * time.Microsecond
	lastRest  = 16 * time.Millisecond
)

// rouse makes sure that the goroutine is there for what retired.
func (d *Device) rouse() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.start()
}

// want has the goroutine grow g.
func (d *Device) want(g *Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.worker.wanted = append(d.worker.wanted, g)
	if d.start() {
		return
	}
	d.worker.wake()
}

// start needs d.mu; false if the goroutine is there already.
func (d *Device) start() bool {
	w := &d.worker
	if w.running || d.still {
		return false
	}
	w.running = true
	go d.work()
	return true
}

// wake ends the goroutine's rest.
func (w *worker) wake() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// work runs until nothing is left to do.
func (d *Device) work() {
	rest := firstRest
	due := time.Now().Add(rest)
	for {
		began := time.Now()
		for g := d.nextWanted(); g != nil; g = d.nextWanted() {
			g.growAhead()
		}
		if !began.Before(due) {
			if progress, _ := d.drainNow(); progress { // what fails is tried again
				rest = firstRest
			} else {
				rest = min(2*rest, lastRest)
			}
			due = time.Now().Add(rest)
		}
		d.worked.Add(int64(time.Since(began)))
		if d.stop() {
			return
		}
		select {
		case <-d.worker.kick:
		case <-time.After(time.Until(due)):
		}
	}
}

// nextWanted is the next range to grow, or nil.
func (d *Device) nextWanted() *Range {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := &d.worker
	if len(w.wanted) == 0 {
		return nil
	}
	g := w.wanted[0]
	w.wanted = append(w.wanted[:0], w.wanted[1:]...)
	return g
}

// stop ends the goroutine if nothing is left to do.
func (d *Device) stop() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.worker.wanted) > 0 || d.waiting() > 0 {
		return false
	}
	d.worker.running = false
	d.joined.Broadcast()
	return true
}
