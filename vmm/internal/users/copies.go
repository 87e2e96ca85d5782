package users

import (
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// Copies counts the library's own copies of a reservation's memory that are
// under way. Code that takes memory away marks it first and then waits for the copies
// that began before. Copies that begin later see the mark. So a copy is waited for
// only by code that takes away its memory. Its zero value is ready.
//
// There are two counts, and the epoch says which of them counts what begins
// now. A wait changes the epoch and waits until the other count is 0.
type Copies struct {
	epoch   atomic.Uint64
	active  [2]atomic.Int64
	waiting atomic.Bool

	mu    sync.Mutex    // one wait at a time
	ended chan struct{} // wakes it; made by the first; guarded by mu, read while waiting is set
}

// Begin counts a copy; the caller passes what it returns to End.
func (c *Copies) Begin() (epoch uint64) {
	for {
		e := c.epoch.Load()
		c.active[e&1].Add(1)
		if c.epoch.Load() == e {
			return e
		}
		c.End(e) // a wait came between, and may not have seen it
	}
}

// End undoes Begin.
func (c *Copies) End(epoch uint64) {
	if c.active[epoch&1].Add(-1) == 0 && c.waiting.Load() {
		select {
		case c.ended <- struct{}{}:
		default:
		}
	}
}

// UnderWay reports whether there are any.
func (c *Copies) UnderWay() bool { return c.active[0].Load() != 0 || c.active[1].Load() != 0 }

// Wait waits for the copies that began before it, and for no other.
func (c *Copies) Wait() {
	lock.Waits()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		c.ended = make(chan struct{}, 1)
	}
	c.waiting.Store(true)
	defer c.waiting.Store(false)
	before := c.epoch.Add(1) - 1
	for c.active[before&1].Load() > 0 {
		<-c.ended
	}
}
