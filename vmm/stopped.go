package vmm

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// stops are what libraries have stopped of the work of streams, as when another process that took part
// has died. The bytes that it would have written are undefined. So what waits for that work returns the
// stop's error, until the library ends the stop; also a wait that began before the stop and ends after it.
type stops struct {
	ended  atomic.Uint64 // how many have ended
	active atomic.Int32  // how many have not

	mu  sync.Mutex // a leaf
	all []*stop    // oldest first: all that have not ended, and the keptStops newest that have
}

type stop struct {
	stream *Stream
	waits  []*Reservation // whose work included the stream's
	err    error
	ended  uint64 // its number among those that have ended, from 1; 0: it has not
}

// keptStops is how many stops that have ended are kept for waits that began before their end.
const keptStops = 64

// stopWork is door.VMM.StopWork.
func (s *Stream) stopWork(err error) (end func()) {
	if s == nil || s.dev == nil || err == nil {
		return func() {}
	}
	s.dev.mu.Lock()
	waits := slices.Collect(maps.Keys(s.waitedForBy))
	s.dev.mu.Unlock()
	x := &s.dev.state.parent.stops
	x.mu.Lock()
	defer x.mu.Unlock()
	before := x.ended.Load()
	x.all = slices.DeleteFunc(x.all, func(a *stop) bool { return a.ended > 0 && a.ended+keptStops <= before })
	a := &stop{stream: s, waits: waits, err: err}
	x.all = append(x.all, a)
	x.active.Add(1)
	return sync.OnceFunc(func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		a.ended = x.ended.Add(1) // first: no wait misses it between the two
		x.active.Add(-1)
	})
}

// noneSince reports whether no stop is active, and none has ended after so many had.
func (x *stops) noneSince(ended uint64) bool {
	return x.active.Load() == 0 && x.ended.Load() <= ended
}

// since is the error of such a stop that is active, or that has ended after so many had.
func (x *stops) since(ended uint64, such func(*stop) bool) error {
	if x.noneSince(ended) {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, a := range x.all {
		if (a.ended == 0 || a.ended > ended) && such(a) {
			return a.err
		}
	}
	return nil
}

// stopped is the error of work of the stream that is stopped, or was when so many stops had ended.
func (s *Stream) stopped(ended uint64) error {
	return s.dev.state.parent.stops.since(ended, func(a *stop) bool { return a.stream == s })
}

// stopped is the error of work that waitForWork waits for and that is stopped, or was when so many
// stops had ended.
func (r *Reservation) stopped(ended uint64) error {
	x := &r.dev.state.parent.stops
	if x.noneSince(ended) {
		return nil
	}
	if devs := r.users.WaitsFor(); devs != nil {
		return x.since(ended, func(a *stop) bool { return slices.Contains(devs, a.stream.dev.state) })
	}
	return x.since(ended, func(a *stop) bool { return slices.Contains(a.waits, r) })
}
