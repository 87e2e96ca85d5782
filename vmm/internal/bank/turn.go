package bank

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/internal/frames"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// A Bank's turn is the right to create memory of it. When memory runs out:
//
//  1. The Bank releases memory that is kept unused, under the locks of the operation that needs
//     it (RetryAfterRelease).
//  2. If that does not help, the operation fails, releases all its locks, and waits for the turn
//     (Ticket). If it had to wait, it tries again.
//  3. With the turn, it calls functions of OnPressure and tries again, until it has succeeded or
//     nothing more is released for it. If its lease is short, it asks the Lender before, for what
//     no one uses, and after, for what others are to give.
//  4. It gives the turn back.
//
// Meanwhile nothing else is created (MayCreate): other operations that need memory release their locks, too,
// and wait for the turn. A range only grows in its turn: what it does with the memory comes after, and may
// take long. A Wake copies in its turn. A goroutine has one turn at a time, and has none while it waits
// for work or for a Supplier.

// pressureTime bounds how long an operation that lacks memory waits for functions of OnPressure,
// those that it calls itself included.
const pressureTime = 10 * time.Second

// Of the process.
var (
	passing atomic.Int32  // goroutines that run letThrough
	freed   atomic.Uint64 // pieces of memory that were released or cached, ever
)

// hook is one function of OnPressure.
type hook struct {
	of      *Account
	f       func(need error) bool
	running sync.WaitGroup
}

// OnPressure registers f, which is called when memory runs out, with no lock held. stop removes f, and returns
// when no call of f is running.
func (a *Account) OnPressure(f func(need error) (released bool)) (stop func()) {
	h := &hook{of: a, f: f}
	b := a.Bank
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hooks = append(b.hooks, h)
	return func() {
		b.mu.Lock()
		b.hooks = slices.DeleteFunc(b.hooks, func(e *hook) bool { return e == h })
		b.mu.Unlock()
		h.running.Wait()
	}
}

// begin counts a call of h, unless it has been removed.
func (b *Bank) begin(h *hook) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.hooks, h) {
		return false
	}
	h.running.Add(1)
	return true
}

func (h *hook) call(err error) (released bool) {
	defer h.running.Done()
	return h.f(err)
}

// callHooks reports whether a function of OnPressure released something for an operation that has failed with
// err.
func (b *Bank) callHooks(err error) (released bool) {
	b.mu.Lock()
	all := slices.Clone(b.hooks)
	b.mu.Unlock()
	for _, h := range all {
		if b.begin(h) { // else one that was called before has removed it
			released = h.call(err) || released
		}
	}
	return released
}

// errTooLarge is an ErrOutOfMemory that no release can help.
var errTooLarge = fmt.Errorf("%w: more than there can be", driver.ErrOutOfMemory)

// errTurnTaken means that free memory is reserved for the operation that has the turn.
var errTurnTaken = fmt.Errorf("%w: memory is being released for another operation", driver.ErrOutOfMemory)

func isTurnTaken(err error) bool { return errors.Is(err, errTurnTaken) }

// Lacks reports whether a release may help an operation that has failed with err.
func Lacks(err error) bool {
	return errors.Is(err, driver.ErrOutOfMemory) && !errors.Is(err, errTooLarge)
}

// MayCreate is an error while another goroutine has the turn, unless this one has a turn or its last try.
func (b *Bank) MayCreate() error {
	if len(b.taken) > 0 && !isLetThrough() {
		return errTurnTaken
	}
	return nil
}

// isLetThrough reports whether the goroutine has a turn, or has waited for one in vain.
func isLetThrough() bool { return passing.Load() > 0 && frames.CalledBy(letThrough) }

// Ticket is what an operation that is short of memory has done to find some.
type Ticket struct {
	freed uint64    // freed when its last try began
	of    *Bank     // the Bank whose turn it had last; nil before the first
	inUse uint64    // of that, when its last try began
	until time.Time // when it stops; zero before its first wait
	last  bool      // it has waited for a turn in vain

	refusal error // why the Lender has lent too little

	need func(error) error // wraps its error for functions of OnPressure
}

// NewTicket begins the first try of an operation.
func NewTicket() Ticket { return Ticket{freed: freed.Load()} }

// Run runs op, the first try, and then Again.
func (t *Ticket) Run(need func(error) error, op func() (short *Bank, err error)) error {
	short, err := op()
	return t.Again(need, short, err, op)
}

// Again tries op again until that succeeds or is in vain, and returns its error. It has failed with err, short of
// memory of a Bank. need wraps the error for functions of OnPressure. The caller holds no lock.
func (t *Ticket) Again(need func(error) error, short *Bank, err error, op func() (short *Bank, err error)) error {
	t.need = need
	for err != nil {
		if t.last || !Lacks(err) || !t.mayWait(short, err) {
			return err
		}
		var more, waited bool
		if t.until.IsZero() {
			t.until = time.Now().Add(pressureTime)
		}
		if waited, t.last = short.takeTurn(t.until); t.last {
			short, err = t.tryLast(op)
			continue
		}
		if short, err, more = letThrough(t, short, err, waited, op); !more {
			return err
		}
	}
	return nil
}

// try tries the operation again.
func (t *Ticket) try(op func() (*Bank, error)) (short *Bank, err error) {
	t.freed = freed.Load()
	if t.of != nil {
		t.inUse = t.of.inUse()
	}
	return op()
}

// tryLast is the last try of an operation that has waited for a turn too long: it needs none.
func (t *Ticket) tryLast(op func() (*Bank, error)) (short *Bank, err error) {
	short, err, _ = letThrough(t, nil, nil, false, op)
	return short, err
}

// mayWait reports whether there is somebody to wait for: functions, or a Lender.
func (t *Ticket) mayWait(b *Bank, err error) bool {
	lock.Waits()
	b.mu.Lock()
	any := len(b.hooks) > 0 || b.lender != nil
	b.mu.Unlock()
	return (any || isTurnTaken(err)) && (*b.noGuard || !isLetThrough())
}

// takeTurn waits for the turn, until that time.
func (b *Bank) takeTurn(until time.Time) (waited, inVain bool) {
	if b.tryTurn() {
		return false, false
	}
	left := time.NewTimer(time.Until(until))
	defer left.Stop()
	select {
	case b.taken <- struct{}{}:
		return true, false
	case <-left.C:
		return true, true
	}
}

// letThrough is a frame that isLetThrough finds. With b it has the turn, and gives it back: it
// calls functions of OnPressure and tries op until no release can help, more is false then, or
// until something else than memory of b is lacking. Without b it tries once.
//
//go:noinline
func letThrough(t *Ticket, b *Bank, err error, waited bool, op func() (*Bank, error)) (short *Bank, _ error, more bool) {
	passing.Add(1)
	defer passing.Add(-1)
	if b == nil {
		short, err = t.try(op)
		return short, err, true
	}
	defer b.giveTurnBack()
	if !waited && !isTurnTaken(err) && !t.isFreed(b) && !t.relieve(b, err) {
		return b, t.explain(err), false
	}
	t.of = b
	for {
		short, err = t.try(op)
		if !Lacks(err) || short != b {
			return short, err, true
		}
		if !time.Now().Before(t.until) || !t.relieve(b, err) {
			return b, t.explain(err), false
		}
	}
}

// giveTurnBack lets the next operation have the turn.
func (b *Bank) giveTurnBack() {
	b.mu.Lock()
	b.asked = 0
	b.mu.Unlock()
	<-b.taken
}

// relieve reports whether memory may have been released since the last try began, or the lease was raised. It asks
// the Lender for what no one uses, calls the functions of OnPressure, and has the Lender ask others, in this order.
func (t *Ticket) relieve(b *Bank, err error) bool {
	return t.borrow(b, err, false) || b.callHooks(t.need(err)) || t.isFreed(b) || t.borrow(b, err, true)
}

// borrow reports whether a Lender has lent enough for an operation that has failed with err.
func (t *Ticket) borrow(b *Bank, err error, urgent bool) bool {
	size, short := lacksLease(err)
	b.mu.Lock()
	l, need := b.lender, b.created+size
	if short && l != nil {
		b.asked = need
	}
	b.mu.Unlock()
	if !short || l == nil {
		return false
	}
	t.refusal = l.Borrow(need, urgent, t.until)
	return b.Lent() >= need
}

// explain adds why the Lender has lent too little.
func (t *Ticket) explain(err error) error {
	if _, short := lacksLease(err); short && t.refusal != nil {
		return fmt.Errorf("%w; %w", err, t.refusal)
	}
	return err
}

// isFreed reports whether there may be more memory than when the last try began. With the turn that
// shows in what is in use, since others create none. Before, they may have created what they have
// released since.
func (t *Ticket) isFreed(b *Bank) bool {
	if t.of != b {
		return freed.Load() != t.freed
	}
	return b.inUse() < t.inUse
}
