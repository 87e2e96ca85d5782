package vmm

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// stops are what libraries have stopped of the work of streams, as when another process that took part
// has died. The bytes that it would have written are undefined. So what waits for that work returns the
// stop's error, until the library ends the stop; also a wait that began before the stop and ends after it.
type stops struct {
	begun  atomic.Uint64 // how many there were
	active atomic.Int32  // how many have not ended

	mu  sync.Mutex // a leaf
	all []*stop    // oldest first: all that have not ended, and the last of the others
}

type stop struct {
	stream *Stream
	err    error
	number uint64 // from 1
	ended  bool
}

// keptStops is how many stops that have ended are kept for waits that began before them.
const keptStops = 64

// stopWork is door.VMM.StopWork.
func (s *Stream) stopWork(err error) (end func()) {
	if s == nil || s.dev == nil || err == nil {
		return func() {}
	}
	x := &s.dev.state.parent.stops
	x.mu.Lock()
	defer x.mu.Unlock()
	ended := len(x.all) - int(x.active.Load())
	x.all = slices.DeleteFunc(x.all, func(a *stop) bool {
		old := a.ended && ended > keptStops
		if old {
			ended--
		}
		return old
	})
	a := &stop{stream: s, err: err, number: x.begun.Load() + 1}
	x.all = append(x.all, a)
	x.active.Add(1)
	x.begun.Add(1)
	return sync.OnceFunc(func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		a.ended = true
		x.active.Add(-1)
	})
}

// noneSince reports whether no stop is active, and none has begun after there were so many.
func (x *stops) noneSince(begun uint64) bool {
	return x.active.Load() == 0 && x.begun.Load() <= begun
}

// since is the error of a stop of such a stream that is active, or that has begun after there were so
// many.
func (x *stops) since(begun uint64, such func(*Stream) bool) error {
	if x.noneSince(begun) {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, a := range x.all {
		if (!a.ended || a.number > begun) && such(a.stream) {
			return a.err
		}
	}
	return nil
}

// stopped is the error of work of the stream that is stopped, or was since there were so many stops.
func (s *Stream) stopped(begun uint64) error {
	return s.dev.state.parent.stops.since(begun, func(of *Stream) bool { return of == s })
}

// stoppedNow is stopped, of what is stopped now.
func (s *Stream) stoppedNow() error { return s.stopped(math.MaxUint64) }

// stopped is the error of work that waitForWork waits for and that is stopped, or was since there were
// so many stops.
func (r *Reservation) stopped(begun uint64) error {
	x := &r.dev.state.parent.stops
	if x.noneSince(begun) {
		return nil
	}
	if devs := r.waitsFor.Load(); devs != nil {
		return x.since(begun, func(of *Stream) bool { return slices.Contains(*devs, of.dev.state) })
	}
	_, streams := r.usersNow(nil, nil)
	return x.since(begun, func(of *Stream) bool { return slices.Contains(streams, of) })
}
