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
	if ready > g.opts.Ahead/2 || g.opts.Ahead == 0 || have == g.r.size {
		return
	}
	need := somewhen
	if ready <= g.opts.Ahead/4 {
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

// afterFailure is how long look-ahead rests that found no memory: who needs it
// tries for itself.
const afterFailure = 100 * time.Millisecond

// growAhead is what the device's goroutine does for a range on its list.
func (g *Range) growAhead() {
	g.wanted.Store(nothing) // before looking, so that no change goes unseen
	g.grow.Lock()
	defer g.grow.Unlock()
	end := g.len.Load()
	goal := end + min(g.opts.Ahead, g.r.size-end)
	if goal <= g.cap.Load() || g.r.usable() != nil {
		return
	}
	m := &g.r.dev.meter
	if err := g.bring(goal, false); err != nil {
		again := time.Now().Add(afterFailure)
		g.pause.Store(&again)
		m.count(&m.counts.AheadFailures, 1)
		g.r.note(&g.r.books.AheadFailures, 1)
		return
	}
	m.count(&m.counts.Aheads, 1)
	g.r.note(&g.r.books.Aheads, 1)
}
