package vmm

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// A device's turn is the right to create memory on it. When memory of the device runs out:
//
//  1. The package releases memory that it keeps unused, under the locks of the operation that needs
//     it (retryAfterRelease).
//  2. If that does not help, the operation fails, releases all its locks, and waits for the turn
//     (withMemory). If it had to wait, it tries again.
//  3. With the turn, it calls functions of OnPressure and tries again, until it has succeeded or
//     nothing more is released for it.
//  4. It gives the turn back.
//
// Meanwhile nothing else is created on the device (mayCreate): other operations that need memory
// release their locks, too, and wait for the turn. A range only grows in its turn: what it does with
// the memory comes after, and may take long. A Wake copies in its turn. A goroutine has one turn at a
// time, and gives it up before it waits for work or for a Supplier.

// pressureTime bounds how long an operation that lacks memory waits for functions of OnPressure,
// those that it calls itself included.
const pressureTime = 10 * time.Second

// pressure is the process's.
var pressure struct {
	letThrough atomic.Int32  // goroutines that run letThrough
	freed      atomic.Uint64 // pieces of memory that were released or cached, ever
}

// OnPressure registers f, which is called when memory of the device runs out, before a Create, Alloc,
// Map, Grow, Append, AppendOn or Wake, or an Alloc of a pool.DriverPool or of package ipc, returns
// ErrOutOfMemory. In need, errors.As finds an OpError: the operation that needs memory, its name, and how
// many bytes were requested. f releases memory that its program does not need, for example a pool's free
// blocks. It reports whether it released anything; if so, the operation is tried again. The package first
// releases its own unused memory. f must return false once it has nothing to release, and must not panic.
//
// f is called by the goroutine that needs memory, with no lock of this package held. A device runs one
// such function at a time. The memory that f releases is kept for the operation that called f, until
// that has succeeded or failed. Other operations that need memory of the device wait meanwhile, for
// ten seconds at most in all, and then take what is free. Growth ahead does not wait.
//
// f may use this package. A call in f that needs memory itself, of any device, calls no function of
// OnPressure: it returns ErrOutOfMemory if none is free. f must not wait for another goroutine's
// operation that may need memory, because that waits for f. Nor must f wait for its own goroutine: if
// that needed memory between LockSpans and unlock, a Clip or Close of those spans in f would wait for
// that unlock.
//
// stop removes f, and returns when no call of f is running, so f must not call stop. On a nil or closed
// device f is never called.
func (d *Device) OnPressure(f func(need error) (released bool)) (stop func()) {
	if d.checkOpen() != nil || f == nil {
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

func callPressureHook(h *pressureHook, err error) (released bool) {
	defer h.running.Done()
	var need *OpError
	errors.As(err, &need)
	h.dev.history.Add(history.Pressure, 0, 0, 0, nonnil.Of(need).Name)
	return h.f(err)
}

// errTooLarge is an ErrOutOfMemory that no release can help.
var errTooLarge = fmt.Errorf("%w: more than there can be", ErrOutOfMemory)

// errTurnTaken is that what is free is for the operation that has the turn.
var errTurnTaken = fmt.Errorf("%w: memory is being released for another operation", ErrOutOfMemory)

// lacksMemory reports whether a release may help an operation that has failed with err.
func lacksMemory(err error) bool {
	return errors.Is(err, ErrOutOfMemory) && !errors.Is(err, errTooLarge)
}

// mayCreate is errTurnTaken while another goroutine has the turn, unless this one has a turn or its
// last try.
func (s *deviceState) mayCreate() error {
	if len(s.pressureTurn) > 0 && !isLetThrough() {
		return errTurnTaken
	}
	return nil
}

// isLetThrough reports whether the goroutine has a turn, or has waited for one in vain.
func isLetThrough() bool { return pressure.letThrough.Load() > 0 && calledBy(letThrough) }

// withMemory runs op, and again each time that memory may have been released for it. With its
// error op returns the device that it is short of memory of. need wraps that error for functions of
// OnPressure. The caller holds no lock.
func withMemory(need func(error) error, op func() (short *deviceState, err error)) error {
	t := newTicket()
	short, err := op()
	t.need = need
	return t.again(nil, short, err, op)
}

// withMemory is door.VMM.WithMemory.
func (d *Device) withMemory(op, name string, size uint64, f func() error) error {
	if f == nil {
		return fmt.Errorf("%w: no function", ErrInvalid)
	}
	if d.checkOpen() != nil {
		return f()
	}
	s := d.state
	need := func(err error) error { return d.opError(op, name, 0, size, err) }
	return withMemory(need, func() (*deviceState, error) {
		return s, s.retryAfterRelease(forCaller, func() error {
			if err := s.mayCreate(); err != nil {
				return err
			}
			return f()
		})
	})
}

// ticket is what an operation that is short of memory has done to find some.
type ticket struct {
	freed uint64       // pressure.freed when its last try began
	dev   *deviceState // whose turn it had last; nil before the first
	inUse uint64       // of dev's memory, when its last try began
	until time.Time    // when it stops; zero before its first wait
	last  bool         // it has waited for a turn in vain

	need func(error) error // wraps its error for functions of OnPressure
}

// newTicket begins the first try of an operation.
func newTicket() ticket { return ticket{freed: pressure.freed.Load()} }

// try tries the operation again.
func (t *ticket) try(op func() (*deviceState, error)) (short *deviceState, err error) {
	t.freed = pressure.freed.Load()
	if t.dev != nil {
		t.inUse = t.dev.inUse()
	}
	return op()
}

// again tries op again until that succeeds or is in vain, and returns its error. It has failed
// with err, short of memory of a device; of what g, if it is not nil, waits for without a turn.
// The caller holds no lock.
func (t *ticket) again(g *Range, short *deviceState, err error, op func() (*deviceState, error)) error {
	for err != nil {
		if g != nil {
			var ended bool
			if ended, err = g.obtain(err); ended {
				if t.last {
					short, err = t.tryLast(op)
				} else {
					short, err = t.try(op)
				}
				continue
			}
			short = g.r.dev.state
		}
		if t.last || !lacksMemory(err) || !t.mayWait(short, err) {
			return err
		}
		var more, waited bool
		if waited, t.last = t.takeTurn(short); t.last {
			short, err = t.tryLast(op)
			continue
		}
		var lack growthLacks
		inTurn := op
		if g != nil && errors.As(err, &lack) {
			inTurn = func() (*deviceState, error) { return g.r.dev.state, g.ensure(lack.need) }
		}
		if short, err, more = letThrough(t, short, err, waited, inTurn); !more {
			return err
		}
		if err == nil && lack.need > 0 { // it has its memory
			short, err = t.try(op)
		}
	}
	return nil
}

// tryLast is the last try of an operation that has waited for a turn too long: it needs none.
func (t *ticket) tryLast(op func() (*deviceState, error)) (short *deviceState, err error) {
	short, err, _ = letThrough(t, nil, nil, false, op)
	return short, err
}

// mayWait reports whether there are functions to wait for.
func (t *ticket) mayWait(s *deviceState, err error) bool {
	lock.Waits()
	s.mu.Lock()
	any := len(s.pressureHooks) > 0
	s.mu.Unlock()
	return (any || errors.Is(err, errTurnTaken)) && (s.parent.hooks.noPressureGuard || !isLetThrough())
}

// takeTurn waits for the turn.
func (t *ticket) takeTurn(s *deviceState) (waited, inVain bool) {
	if t.until.IsZero() {
		t.until = time.Now().Add(pressureTime)
	}
	select {
	case s.pressureTurn <- struct{}{}:
		return false, false
	default:
	}
	left := time.NewTimer(time.Until(t.until))
	defer left.Stop()
	select {
	case s.pressureTurn <- struct{}{}:
		return true, false
	case <-left.C:
		return true, true
	}
}

// letThrough is a frame that isLetThrough finds. With s it has the turn, and gives it back: it
// calls functions of OnPressure and tries op until no release can help, more is false then, or
// until something else than memory of s is lacking. Without s it tries once.
//
//go:noinline
func letThrough(t *ticket, s *deviceState, err error, waited bool, op func() (*deviceState, error)) (short *deviceState, _ error, more bool) {
	pressure.letThrough.Add(1)
	defer pressure.letThrough.Add(-1)
	if s == nil {
		short, err = t.try(op)
		return short, err, true
	}
	defer func() { <-s.pressureTurn }()
	if !waited && !errors.Is(err, errTurnTaken) && !t.isFreed(s) && !t.relieve(s, err) {
		return s, err, false
	}
	t.dev = s
	for {
		short, err = t.try(op)
		if !lacksMemory(err) || short != s {
			return short, err, true
		}
		if !time.Now().Before(t.until) || !t.relieve(s, err) {
			return s, err, false
		}
	}
}

// relieve calls the functions of OnPressure, and reports whether memory may have been released
// since the last try began.
func (t *ticket) relieve(s *deviceState, err error) bool {
	var done *OpError
	if !errors.As(err, &done) {
		err = t.need(err)
	}
	return s.runPressureHooks(err) || t.isFreed(s)
}

// isFreed reports whether there may be more memory than when the last try began. With the turn that
// shows in what is in use, since others create none. Before, they may have created what they have
// released since.
func (t *ticket) isFreed(s *deviceState) bool {
	if t.dev != s {
		return pressure.freed.Load() != t.freed
	}
	return s.inUse() < t.inUse
}

// inUse is how many bytes this process has created and neither released nor cached.
func (s *deviceState) inUse() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.created
	for _, d := range s.devices {
		n -= d.counters.Read(&d.counters.Cached.Now)
	}
	return n
}

// runPressureHooks reports whether a function of OnPressure released something for an operation
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
// released, before the operation releases its locks. Others may take the released memory.
const releaseTries = 8

// retryAfterRelease calls f. If f fails with ErrOutOfMemory and a caller waits for
// the memory, it has memory released and calls f again. It stops when no memory was
// released since the last try; another goroutine's release counts.
func (s *deviceState) retryAfterRelease(purpose purpose, f func() error) error {
	for try := 1; ; try++ {
		seen := s.released.Load()
		err := f()
		if purpose != forCaller || !lacksMemory(err) || errors.Is(err, errTurnTaken) || try == releaseTries || !s.releaseForOthers(seen) {
			return err
		}
	}
}

// releaseForOthers has all Devices on this one release what they can do without,
// and reports whether any memory was released since seen was read.
func (s *deviceState) releaseForOthers(seen uint64) bool {
	s.pressureUntil.Store(time.Now().Add(afterFailure).UnixNano())
	s.pressureMu.Lock() // what another goroutine is about to release counts
	defer s.pressureMu.Unlock()
	s.mu.Lock()
	devs := slices.Clone(s.devices)
	s.mu.Unlock()
	for _, d := range devs {
		d.history.Add(history.Pressure, 0, 0, 0, "")
		if s.released.Load() == seen {
			d.trim(0) //nolint:errcheck // what the driver refuses is counted as quarantined
		}
	}
	return s.released.Load() != seen
}

// underPressure reports whether a caller has just run out of the device's memory: what
// is released meanwhile is for such callers.
func (s *deviceState) underPressure() bool { return time.Now().UnixNano() < s.pressureUntil.Load() }
