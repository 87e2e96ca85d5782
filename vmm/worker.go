package vmm

import "time"

// The device's one goroutine grows ranges before they need it and unmaps what
// retired once nothing uses it. It is there while there is something to do, and
// sparse: what has to be done at all it does in few, large steps, since mapping
// without a pause takes bandwidth from running copies.
type worker struct {
	running bool          // under Device.mu
	wanted  []*Range      // to grow ahead of need, each once; under Device.mu
	kick    chan struct{} // ends its rest
}

// What retired is looked at every few milliseconds: a growth that comes before
// takes it back for nothing, and releasing memory as fast as it is given up
// slows down running copies, since what is released is cleared.
const (
	firstRest = 4 * time.Millisecond
	lastRest  = 32 * time.Millisecond
)

// Ranges put themselves on the list without waking the goroutine, unless they
// are in a hurry: that is a system call in the middle of an append. So it looks
// for itself, less and less often, and lingers a little.
const (
	firstLook = 250 * time.Microsecond
	lastLook  = 4 * time.Millisecond
	linger    = 20 * time.Millisecond
)

// rouse makes sure that the goroutine is there for what retired.
func (d *Device) rouse() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.start()
}

// want has the goroutine grow g when it looks next.
func (d *Device) want(g *Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, open := d.open[g.r]; !open {
		return // a Grow that Close overtook: nobody might join the goroutine
	}
	d.worker.wanted = append(d.worker.wanted, g)
	d.start()
}

// start needs d.mu.
func (d *Device) start() {
	if w := &d.worker; !w.running && !d.still {
		w.running = true
		go d.work()
	}
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
	rest, look := firstRest, firstLook
	began := time.Now()
	due, busy := began.Add(rest), began
	for {
		for g := d.nextWanted(); g != nil; g = d.nextWanted() {
			g.growAhead()
			look, busy = firstLook, time.Now()
		}
		if !began.Before(due) {
			rest = min(2*rest, lastRest)
			if progress, _ := d.drain(); progress { // what fails is tried again
				rest, busy = firstRest, time.Now()
			}
			due = time.Now().Add(rest)
		}
		d.worked.Add(int64(time.Since(began)))
		if d.stop(time.Since(busy) >= linger) {
			return
		}
		select {
		case <-d.worker.kick:
		case <-time.After(min(look, max(0, time.Until(due)))):
			look = min(2*look, lastLook)
		}
		began = time.Now()
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

// stop ends the goroutine if nothing is left to do and nobody is likely to come.
func (d *Device) stop(idle bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.worker.wanted) > 0 || d.waiting() > 0 || !idle && len(d.open) > 0 {
		return false
	}
	d.worker.running = false
	d.joined.Broadcast()
	return true
}
