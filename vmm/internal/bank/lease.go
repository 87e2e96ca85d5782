package bank

import (
	"math"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/internal/history"
)

// A lease is the bound that somebody else sets: a Lender, who divides the memory of a device among processes. It
// rises when the Lender lends more, and falls when the Lender asks for memory: by DropCached, Give or Cut.

// Lender lends the right to create memory.
type Lender interface {
	// Borrow asks for a lease of at least need bytes, and calls Raise before it returns. Without urgent it asks
	// for what no one uses; else others are asked to give theirs. It returns by until, and says why it got too
	// little. The goroutine has the turn, and no lock.
	Borrow(need uint64, urgent bool, until time.Time) (refusal error)
	// Near says that the lease has become short (IsShort). It is called with locks, and must not wait.
	Near()
}

// nearParts: a lease is short once less than one of so many parts of it is left.
const nearParts = 8

// Lend makes what the process has created now its lease, until Unlend. It is false if there is a Lender.
func (b *Bank) Lend(l Lender) bool {
	b.mu.Lock()
	if b.lender != nil {
		b.mu.Unlock()
		return false
	}
	b.lender, b.bounds[Lease] = l, math.MaxUint64-1 // it bounds nothing, but all is counted from here on
	b.mu.Unlock()
	b.countPools()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setLeaseLocked(b.created, b.created)
	return true
}

// Unlend ends the lease. It is false if the caller is in a function of OnPressure, whose operation may wait for the
// Lender.
func (b *Bank) Unlend() bool {
	if isLetThrough() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lender = nil
	b.noteLeaseLocked(0)
	b.lent, b.bounds[Lease], b.near = 0, math.MaxUint64, math.MaxUint64
	return true
}

// setLeaseLocked sets the lease, and the bound. It needs mu.
func (b *Bank) setLeaseLocked(lent, bound uint64) {
	b.noteLeaseLocked(lent)
	b.lent, b.bounds[Lease], b.near = lent, bound, bound-bound/nearParts
}

// noteLeaseLocked adds to the history by how much the lease rises or falls. It needs mu.
func (b *Bank) noteLeaseLocked(lent uint64) {
	kind, by := history.Lend, lent-b.lent
	switch {
	case lent == b.lent:
		return
	case lent < b.lent:
		kind, by = history.Give, b.lent-lent
	}
	for _, a := range b.accounts {
		a.History.Add(kind, 0, by, 0, "")
	}
}

// IsShort reports whether 7/8 of the lease are created.
func (b *Bank) IsShort() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.created > b.near
}

// State is the lease, what counts against it, and the limit; MaxUint64: none.
func (b *Bank) State() (lease, created, limit uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lent, b.created, b.bounds[Limit]
}

// Lent is the lease.
func (b *Bank) Lent() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lent
}

// Raise adds to the lease.
func (b *Bank) Raise(bytes uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lender != nil {
		b.setLeaseLocked(b.lent+min(bytes, math.MaxUint64-b.lent), b.bounds[Lease]+min(bytes, math.MaxUint64-b.bounds[Lease]))
	}
	freed.Add(1)
}

// Cut lowers the lease, even below what is created.
func (b *Bank) Cut(lease uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lender != nil && lease < b.lent {
		b.setLeaseLocked(lease, min(lease, b.bounds[Lease]))
	}
}

// usedLocked is how much of the lease drop leaves: all memory that is created, and memory that an operation has been
// lent and is about to create. It needs mu.
func (b *Bank) usedLocked() uint64 {
	if b.asked <= b.lent {
		return max(b.created, b.asked)
	}
	return b.created
}

// drop lowers the lease to what is used, or to target if that is more. It returns by how much.
func (b *Bank) drop(target uint64) (given uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	target = max(target, b.usedLocked())
	if b.lender == nil || b.lent <= target {
		return 0
	}
	given = b.lent - target
	b.setLeaseLocked(target, min(target, b.bounds[Lease]))
	return given
}

// DropCached releases unused memory, as far as more than target is created. Then it lowers the lease as drop does. It
// returns by how much.
func (b *Bank) DropCached(target uint64) (given uint64) {
	above := b.above(target)
	given = b.drop(target)
	if above == 0 {
		return given
	}
	b.reclaim(target)
	return given + b.drop(target)
}

// Give is DropCached that then calls the functions of OnPressure until target is reached, none of them releases
// anything, or until has come. It waits for the turn, and then for memory that is retiring. The Lender must not keep an
// operation waiting meanwhile that has the turn. busy: Give did not get the turn. need makes the error that the functions
// get.
func (b *Bank) Give(target uint64, until time.Time, need func(size uint64) error) (given uint64, busy bool) {
	given = b.DropCached(target)
	if b.above(target) == 0 && b.Lent() <= target {
		return given, false
	}
	if _, inVain := b.takeTurn(until); inVain {
		return given, true
	}
	defer func() { // also if a function panics, or ends its goroutine
		given += b.settle()
		<-b.taken
	}()
	b.mu.Lock()
	if b.lender != nil { // from here on nothing takes what is released
		b.setLeaseLocked(b.lent, min(target, b.bounds[Lease]))
	}
	b.mu.Unlock()
	b.giveTo(target, until, need)
	return given, false
}

// settle ends the lower bound of a Give: the lease comes down to it, or to what is created, and is the bound again. It
// returns by how much the lease has fallen.
func (b *Bank) settle() (given uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lender == nil { // the lease has ended
		return 0
	}
	old, lease := b.lent, min(b.lent, max(b.bounds[Lease], b.created))
	b.setLeaseLocked(lease, lease)
	return old - lease
}

// Relieve is Give for a limit that no Lender has set: the lease stays, since its Lender has not asked for it.
func (b *Bank) Relieve(target uint64, until time.Time, need func(size uint64) error) (busy bool) {
	if b.above(target) == 0 {
		return false
	}
	b.reclaim(target)
	if b.above(target) == 0 {
		return false
	}
	if !b.tryTurn() {
		return true
	}
	defer func() { <-b.taken }()
	b.giveTo(target, until, need)
	return false
}

// tryTurn takes the turn if it is free.
func (b *Bank) tryTurn() bool {
	select {
	case b.taken <- struct{}{}:
		return true
	default:
		return false
	}
}

// giveTo calls functions of OnPressure until target is reached, none of them releases anything, or until has come. It
// has the turn.
func (b *Bank) giveTo(target uint64, until time.Time, need func(size uint64) error) {
	fell := make(chan struct{}, 1)
	b.setLowered(fell)
	defer b.setLowered(nil)
	letThrough(&Ticket{}, nil, nil, false, func() (*Bank, error) { //nolint:errcheck // it returns none
		for more := true; more && time.Now().Before(until); {
			size := b.above(target)
			if size == 0 {
				break
			}
			more = b.callHooks(need(size))
			b.reclaim(target)
			b.waitForRetired(target, until, fell)
			more = more || b.above(target) < size
		}
		return nil, nil
	})
}

func (b *Bank) setLowered(fell chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lowered = fell
}

// waitForRetired waits until target is reached, or nothing retires any more. fell has something when created falls.
func (b *Bank) waitForRetired(target uint64, until time.Time, fell <-chan struct{}) {
	end := time.NewTimer(time.Until(until))
	defer end.Stop()
	for b.above(target) > 0 && b.retiring() > 0 {
		select {
		case <-fell:
		case <-end.C:
			return
		}
	}
}

// retiring is how much memory was given up by ranges, while work that uses it runs.
func (b *Bank) retiring() (n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.accounts {
		n += a.Counters.Read(&a.Counters.Retiring.Now)
	}
	return n
}

// above is how much more than target is created, as the driver says it now.
func (b *Bank) above(target uint64) uint64 {
	b.countPools()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.created - min(b.created, target)
}

// reclaim has all Devices release what they can do without, as far as more than target is created.
func (b *Bank) reclaim(target uint64) {
	unlock := b.Releasing()
	defer unlock()
	b.mu.Lock()
	all := slices.Clone(b.accounts)
	b.mu.Unlock()
	for _, a := range all {
		cached := a.Counters.Read(&a.Counters.Cached.Now)
		a.Reclaim(cached - min(cached, b.above(target)))
	}
}
