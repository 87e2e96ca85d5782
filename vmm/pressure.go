package vmm

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// When memory of a device runs out, what the package itself can do without goes first, under the
// locks of the operation that needs it (retryAfterRelease). If that does not help, the operation
// fails, gives up all its locks, and is tried again after functions of OnPressure have released
// something (withMemory). They run one at a time. An operation that had to wait for those of
// another one is tried again before it calls them itself, since what they released is for all.

// pressureTime bounds how long an operation that lacks memory waits for functions of OnPressure,
// those that it calls itself included.
const pressureTime = 10 * time.Second

// pressure is the process's functions of OnPressure.
var pressure struct {
	rounds  atomic.Uint64 // in which an operation has called all functions of a device
	running atomic.Int32  // calls
}

// OnPressure has f called when memory of the device runs out, before ErrOutOfMemory is
// returned by a Create, Alloc, Map, Grow, Append, AppendOn or Wake. f releases what its
// program can do without, a pool's free blocks for one, and returns whether it released
// anything; if so, the operation is tried again. The package's own unused memory goes
// first. f must return false once it has nothing to release, and must not panic.
//
// f is called by the goroutine that needs memory, with no lock of this package held. Of
// a device's functions one runs at a time. Who needs memory meanwhile waits, for ten seconds
// in all, and tries again. f may use this package, but what it needs memory for itself, of
// any device, fails with ErrOutOfMemory and calls no function. It must not wait for
// operations of other goroutines that may need memory: they wait for it.
//
// stop removes f, and returns when no call of f is running, so f must not call it. On a nil
// or closed device f is never called.
func (d *Device) OnPressure(f func(need error) (released bool)) (stop func()) {
	if d.live() != nil || f == nil {
		return func() {}
	}
	h := &pressureHook{dev: d, f: f}
	s := d.state
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pressureHooks = append(s.pressureHooks, h)
	return func() {
		s.mu.Lock()
		s.pressureHooks = slices.DeleteFunc(s.pressureHooks, func(e *pressureHook) bool { return e == h })
		s.mu.Unlock()
		h.running.Wait()
	}
}

// pressureHook is one function of OnPressure.
type pressureHook struct {
	dev     *Device
	f       func(need error) bool
	running sync.WaitGroup
}

// beginPressureHook counts a call of h, unless it has been removed.
func (s *deviceState) beginPressureHook(h *pressureHook) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.pressureHooks, h) {
		return false
	}
	h.running.Add(1)
	return true
}

// callPressureHook is a frame that inPressureHook finds.
//
//go:noinline
func callPressureHook(h *pressureHook, err error) (released bool) {
	pressure.running.Add(1)
	defer pressure.running.Add(-1)
	defer h.running.Done()
	return h.f(err)
}

// inPressureHook says whether a function of OnPressure has called this one.
func inPressureHook() bool { return pressure.running.Load() > 0 && calledBy("callPressureHook") }

// errTooLarge is an ErrOutOfMemory that no release can help.
var errTooLarge = fmt.Errorf("%w: more than there can be", ErrOutOfMemory)

// withMemory runs op, and again each time that memory may have been released for it. With its
// error op returns the Device that it is short of memory of. The caller holds no lock.
func withMemory(op func() (short *Device, err error)) error {
	t := newTicket()
	for {
		if d, err := op(); err == nil || !t.again(d, err) {
			return err
		}
	}
}

// withMemory is withMemory for an operation that needs memory of this Device.
func (d *Device) withMemory(op func() error) error {
	return withMemory(func() (*Device, error) { return d, op() })
}

// ticket is what an operation that is short of memory has done to find some.
type ticket struct {
	seen    uint64    // rounds that had ended when its last try began
	until   time.Time // when it stops; zero before its first wait
	excused bool      // it was tried again because of what others released
}

// newTicket begins the first try of an operation.
func newTicket() ticket { return ticket{seen: pressure.rounds.Load()} }

// again says whether an operation that has failed with err, short of memory of d, is to be tried
// again, and begins that try. The caller holds no lock.
func (t *ticket) again(d *Device, err error) bool {
	if !errors.Is(err, ErrOutOfMemory) || errors.Is(err, errTooLarge) || !t.relieve(d.state, err) {
		return false
	}
	t.seen = pressure.rounds.Load()
	return true
}

// relieve says whether memory may have been released since the last try began.
func (t *ticket) relieve(s *deviceState, err error) bool {
	lock.Waits()
	s.mu.Lock()
	any := len(s.pressureHooks) > 0
	s.mu.Unlock()
	if !any || inPressureHook() && !s.parent.hooks.noPressureGuard {
		return false
	}
	if t.until.IsZero() {
		t.until = time.Now().Add(pressureTime)
	}
	left := time.NewTimer(time.Until(t.until))
	defer left.Stop()
	select {
	case s.pressureTurn <- struct{}{}:
	case <-left.C:
		return false
	}
	defer func() { <-s.pressureTurn }()
	if !time.Now().Before(t.until) {
		return false
	}
	if s.pressureRound > t.seen {
		return true
	}
	before := s.released.Load()
	released := s.runPressureHooks(err)
	s.pressureRound = pressure.rounds.Add(1)
	if released {
		return true
	}
	byOthers := s.released.Load() != before && !t.excused
	t.excused = true
	return byOthers
}

// runPressureHooks says whether a function of OnPressure released something for an operation
// that has failed with err.
func (s *deviceState) runPressureHooks(err error) (released bool) {
	s.mu.Lock()
	all := slices.Clone(s.pressureHooks)
	s.mu.Unlock()
	for _, h := range all {
		if s.beginPressureHook(h) { // else one that was called before has removed it
			released = callPressureHook(h, err) || released
		}
	}
	return released
}

// releaseTries is how often one piece of memory is asked for, each time after something was
// released, before the operation gives up its locks. Others may take what was released.
const releaseTries = 8

// retryAfterRelease calls f. If f fails with ErrOutOfMemory and a caller waits for
// the memory, it has memory released and calls f again. It stops when no memory was
// released since the last try; another goroutine's release counts.
func (s *deviceState) retryAfterRelease(purpose purpose, f func() error) error {
	for try := 1; ; try++ {
		seen := s.released.Load()
		err := f()
		if purpose != forCaller || !errors.Is(err, ErrOutOfMemory) || errors.Is(err, errTooLarge) || try == releaseTries || !s.releaseForOthers(seen) {
			return err
		}
	}
}

// afterFailure is how long growth ahead pauses after it found less memory than it wanted. A growth that needs the memory tries for itself.
const afterFailure = 100 * time.Millisecond

// releaseForOthers has all Devices on this one release what they can do without,
// and says whether any memory was released since seen was read.
func (s *deviceState) releaseForOthers(seen uint64) bool {
	s.pressureUntil.Store(time.Now().Add(afterFailure).UnixNano())
	s.pressureMu.Lock() // what another goroutine is about to release counts
	defer s.pressureMu.Unlock()
	s.mu.Lock()
	devs := slices.Clone(s.devices)
	s.mu.Unlock()
	for _, d := range devs {
		if s.released.Load() == seen {
			d.trim(0) //nolint:errcheck // what the driver refuses is counted as quarantined
		}
	}
	return s.released.Load() != seen
}

// underPressure says whether a caller has just run out of the device's memory: what
// is released meanwhile is for such callers.
func (s *deviceState) underPressure() bool { return time.Now().UnixNano() < s.pressureUntil.Load() }
