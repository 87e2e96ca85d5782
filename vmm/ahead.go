package vmm

import "time"

// What a range wants of the device's goroutine.
const (
	nothing  int32 = iota
	somewhen       // memory, when it looks
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
	need := somewhen
	if ready <= g.opts.GrowAhead/4 {
		need = urgently
	}
	was := g.wanted.Load()
	if was >= need || g.pausing() || !g.wanted.CompareAndSwap(was, need) {
		return
	}
	if was == nothing {
		g.r.dev.want(g)
	}
	if need == urgently {
		g.r.dev.worker.wake()
	}
}

func (g *Range) pausing() bool {
	t := g.pause.Load()
	return t != nil && time.Now().Before(*t)
}

// afterFailure is how long look-ahead rests after it found less memory than it
// wanted. A growth that needs the memory tries for itself.
const afterFailure = 100 * time.Millisecond

// growAhead is what the device's goroutine does for a range on its list.
func (g *Range) growAhead() {
	g.wanted.Store(nothing) // before looking, so that no change goes unseen
	g.grow.Lock()
	defer g.grow.Unlock()
	end, have := g.len.Load(), g.cap.Load()
	goal := end + min(g.opts.GrowAhead, g.r.size-end)
	if goal <= have || g.r.live() != nil || g.r.dev.port.short() {
		return
	}
	m := &g.r.dev.meter
	within := g.affordable(have, goal)
	err := error(nil)
	if within > have {
		err = g.bring(within, false)
	}
	if err != nil || within < goal {
		again := time.Now().Add(afterFailure)
		g.pause.Store(&again)
		m.count(&m.counts.GrowAheadFailures, 1)
		g.r.note(&g.r.books.GrowAheadFailures, 1)
		return
	}
	m.count(&m.counts.GrowAheads, 1)
	g.r.note(&g.r.books.GrowAheads, 1)
}

// aheadLeaves is which part of the device's memory, and of the limit, look-ahead
// leaves to those who cannot wait.
const aheadLeaves = 16

// short says whether somebody has just run out of the device's memory: what comes
// back is for them.
func (p *port) short() bool { return time.Now().UnixNano() < p.shortUntil.Load() }

// affordable is how far towards goal look-ahead may bring Cap, given what is free
// now. It asks the driver only where a context is open; it makes none.
func (g *Range) affordable(have, goal uint64) uint64 {
	p := g.r.dev.port
	spare := p.underLimit(aheadLeaves)
	if o := p.open.Load(); o != nil && o.hold() {
		free, total, err := o.MemInfo()
		o.letGo()
		if err == nil {
			spare = min(spare, free-min(free, total/aheadLeaves))
		}
	}
	// What retires here, and what is kept, takes no new memory.
	g.r.mu.Lock()
	ours := g.r.books.Retiring
	g.r.mu.Unlock()
	m := &g.r.dev.meter
	m.mu.Lock()
	ours += m.cached.now
	m.mu.Unlock()
	unit := g.unit()
	if left := goal - have; left > ours && left-ours > spare {
		return have + (ours+spare)/unit*unit
	}
	return goal
}
