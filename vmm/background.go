package vmm

import (
	"time"
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
	firstRest = 4 * time.Millisecond
	lastRest  = 32 * time.Millisecond
)

// Ranges put themselves on the list without waking the goroutine, unless they
// are in a hurry: that is a system call in the middle of an append. So it looks
// for itself, less and less often, and lingers a little.
const (
	firstLook   = 250 * time.Microsecond
	lastLook    = 4 * time.Millisecond
	idleTimeout = 20 * time.Millisecond
)

// rouse makes sure that the goroutine is there for what retired.
func (d *Device) wakeWorker() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.startWorkerLocked()
}

// want has the goroutine grow g when it looks next.
func (d *Device) queueGrowth(g *Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, open := d.open[g.r]; !open {
		return // a Grow that Close overtook: nobody might join the goroutine
	}
	d.worker.queue = append(d.worker.queue, g)
	d.startWorkerLocked()
}

// start needs d.mu.
func (d *Device) startWorkerLocked() {
	if w := &d.worker; !w.running && !d.noWorker {
		w.running = true
		go d.work()
	}
}

// wake ends the goroutine's rest.
func (w *worker) kick() {
	select {
	case w.kicked <- struct{}{}:
	default:
	}
}

// work runs until nothing is left to do.
func (d *Device) work() {
	rest, look := firstRest, firstLook
	began := time.Now()
	due, busy := began.Add(rest), began
	for {
		for g := d.nextGrowth(); g != nil; g = d.nextGrowth() {
			g.growAhead()
			look, busy = firstLook, time.Now()
		}
		if !began.Before(due) {
			rest = min(2*rest, lastRest)
			if progress, _ := d.sweepRetired(); progress { // what fails is tried again
				rest, busy = firstRest, time.Now()
			}
			due = time.Now().Add(rest)
		}
		d.worked.Add(int64(time.Since(began)))
		if d.stopIfIdle(time.Since(busy) >= idleTimeout) {
			return
		}
		select {
		case <-d.worker.kicked:
		case <-time.After(min(look, max(0, time.Until(due)))):
			look = min(2*look, lastLook)
		}
		began = time.Now()
	}
}

// nextWanted is the next range to grow, or nil.
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

// stop ends the goroutine if nothing is left to do and nobody is likely to come.
func (d *Device) stopIfIdle(idle bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.worker.queue) > 0 || d.retiringCount() > 0 || !idle && len(d.open) > 0 {
		return false
	}
	d.worker.running = false
	d.wakeup.Broadcast()
	return true
}

// What a range wants of the device's goroutine.
const (
	nothing  int32 = iota
	soon           // memory, when it looks
	urgently       // memory, at once
)

// lookAhead puts the range on the list of the device's goroutine if half of
// what it is to have ready is used up, and wakes that at three quarters.
func (g *Range) lookAhead() {
	have := g.cap.Load()
	ready := have - min(g.len.Load(), have)
	if ready > g.opts.GrowAhead/2 || g.opts.GrowAhead == 0 || have == g.r.size {
		return
	}
	need := soon
	if ready <= g.opts.GrowAhead/4 {
		need = urgently
	}
	was := g.aheadWanted.Load()
	if was >= need || g.aheadPaused() || !g.aheadWanted.CompareAndSwap(was, need) {
		return
	}
	if was == nothing {
		g.r.dev.queueGrowth(g)
	}
	if need == urgently {
		g.r.dev.worker.kick()
	}
}

func (g *Range) aheadPaused() bool {
	t := g.aheadPause.Load()
	return t != nil && time.Now().Before(*t)
}

// afterFailure is how long look-ahead rests after it found less memory than it
// wanted. A growth that needs the memory tries for itself.
const afterFailure = 100 * time.Millisecond

// growAhead is what the device's goroutine does for a range on its list.
func (g *Range) growAhead() {
	g.aheadWanted.Store(nothing) // before looking, so that no change goes unseen
	g.capMu.Lock()
	defer g.capMu.Unlock()
	end, have := g.len.Load(), g.cap.Load()
	goal := end + min(g.opts.GrowAhead, g.r.size-end)
	if goal <= have || g.r.live() != nil || g.r.dev.state.underPressure() {
		return
	}
	m := &g.r.dev.counters
	within := g.affordable(have, goal)
	err := error(nil)
	if within > have {
		err = g.grow(within, false)
	}
	if err != nil || within < goal {
		again := time.Now().Add(afterFailure)
		g.aheadPause.Store(&again)
		m.count(&m.counts.GrowAheadFailures, 1)
		g.r.count(&g.r.stats.GrowAheadFailures, 1)
		return
	}
	m.count(&m.counts.GrowAheads, 1)
	g.r.count(&g.r.stats.GrowAheads, 1)
}

// aheadLeaves is which part of the device's memory, and of the limit, look-ahead
// leaves to those who cannot wait.
const aheadLeaves = 16

// short says whether somebody has just run out of the device's memory: what comes
// back is for them.
func (p *deviceState) underPressure() bool { return time.Now().UnixNano() < p.pressureUntil.Load() }

// affordable is how far towards goal look-ahead may bring Cap, given what is free
// now. It asks the driver only where a context is open; it makes none.
func (g *Range) affordable(have, goal uint64) uint64 {
	p := g.r.dev.state
	spare := p.underLimit(aheadLeaves)
	if o := p.open.Load(); o != nil && o.retain() {
		free, total, err := o.MemInfo()
		o.release()
		if err == nil {
			spare = min(spare, free-min(free, total/aheadLeaves))
		}
	}
	// What retires here, and what is kept, takes no new memory.
	g.r.mu.Lock()
	ours := g.r.stats.Retiring
	g.r.mu.Unlock()
	m := &g.r.dev.counters
	m.mu.Lock()
	ours += m.cached.now
	m.mu.Unlock()
	unit := g.unit()
	if left := goal - have; left > ours && left-ours > spare {
		return have + (ours+spare)/unit*unit
	}
	return goal
}
