package bank

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/count"
	"github.com/cuvmm/cuvmm/vmm/internal/freelist"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// Purpose is what a growth is for.
type Purpose bool

// Purposes.
const (
	ForCaller    Purpose = true  // a caller waits: all or nothing, and others release what they can do without
	ForGrowAhead Purpose = false // nothing is waited for: what is affordable, and never at others' cost
)

// Bank is the memory of one ordinal. Safe for concurrent use.
type Bank struct {
	noGuard *bool // a hook of tests: a function of OnPressure calls functions of OnPressure

	released      atomic.Uint64 // bytes of memory that went back to the driver, ever
	pressureUntil atomic.Int64  // no growth ahead until then, in Unix nanoseconds

	releasing lock.Mutex    // one goroutine at a time looks for memory to release
	taken     chan struct{} // has room for the one operation that memory is released for

	mu       lock.Mutex
	accounts []*Account
	bounds   [bounds]uint64 // on what this process creates; the least counts
	around   string         // the limit that the bound Around is a part of
	created  uint64
	changes  uint64 // how often created has changed
	hooks    []*hook
	pools    []*driverPool // the driver's, that are open
	lender   Lender        // nil: there is no lease
	lent     uint64        // the lease; the bound is lower during a Give
	asked    uint64        // the lease that the operation with the turn has asked for; 0: none
	near     uint64        // the lender hears that the lease is short once more than this is created
	lowered  chan struct{} // of capacity 1, during a Give: created has changed
}

// New is the memory of an ordinal.
func New(ordinal int, noGuard *bool) *Bank {
	b := &Bank{noGuard: noGuard, taken: make(chan struct{}, 1), bounds: unbounded, near: math.MaxUint64}
	key := uint64(ordinal) // several are locked by ordinal
	b.releasing.At(lock.Pressure, key)
	b.mu.At(lock.Bank, key)
	return b
}

// Account is the memory of one Device in a Bank. Safe for concurrent use.
type Account struct {
	// Immutable.
	Bank     *Bank
	Driver   driver.Driver
	Location driver.Location
	Counters *count.Counters
	Samples  *memsample.Owner
	History  *history.Log
	Home     func(driver.Location) *Bank // the Bank of a location; nil if no device is open there
	Reclaim  func(keep uint64)           // releases what the ranges can do without, and the cache but for keep bytes; it holds Bank.Releasing

	// Guarded by Bank.mu.
	cache   freelist.List[driver.Prop, driver.Handle] // unused, which the next growth may have
	refused []*Memory                                 // the driver did not take it back; Trim tries again
}

// Add makes an account one of its Bank.
func (a *Account) Add() {
	b := a.Bank
	b.mu.Lock()
	defer b.mu.Unlock()
	b.accounts = append(b.accounts, a)
}

// Remove undoes Add, and takes its functions of OnPressure away. The limit goes with the last account.
func (a *Account) Remove() {
	b := a.Bank
	b.mu.Lock()
	defer b.mu.Unlock()
	b.accounts = slices.DeleteFunc(b.accounts, func(e *Account) bool { return e == a })
	b.hooks = slices.DeleteFunc(b.hooks, func(h *hook) bool { return h.of == a })
	if len(b.accounts) == 0 {
		b.bounds = unbounded
	}
}

// Releasing keeps other goroutines from looking for memory to release until unlock.
func (b *Bank) Releasing() (unlock func()) {
	b.releasing.Lock()
	return b.releasing.Unlock
}

// Created is how many bytes count against the limit, and how often that has changed.
func (b *Bank) Created() (bytes, changes uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.created, b.changes
}

// Left is how much may still be created if 1/parts of the least bound is to stay free.
func (b *Bank) Left(parts uint64) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, bound := b.boundLocked()
	if bound == math.MaxUint64 {
		return bound
	}
	most := bound - bound/parts
	return most - min(most, b.created)
}

// CheckSize is an error if so much memory is beyond the limit, whatever else is released.
func (b *Bank) CheckSize(size uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if limit := b.bounds[Limit]; size > limit {
		return fmt.Errorf("%w: this process's limit is %s", errTooLarge, errtext.Size(limit))
	}
	return nil
}

// charge counts memory that is about to be created against the bounds, all or nothing.
func (b *Bank) charge(size uint64, purpose Purpose) error {
	if err := b.CheckSize(size); err != nil {
		return err
	}
	return b.RetryAfterRelease(purpose, func() error { return b.chargeOnce(size) })
}

// chargeOnce is charge without having anything released.
func (b *Bank) chargeOnce(size uint64) error {
	if err := b.MayCreate(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.checkRoomLocked(size); err != nil {
		return err
	}
	b.created += size
	b.changedLocked()
	return nil
}

// CheckRoom is an error if the bounds do not leave so much for all of an operation that creates memory in parts, and
// undoes them if one fails. A part's own error says only what that part lacks.
func (b *Bank) CheckRoom(size uint64, purpose Purpose) error {
	return b.RetryAfterRelease(purpose, func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.checkRoomLocked(size)
	})
}

// checkRoomLocked is an error if the bounds leave less than size. It needs mu.
func (b *Bank) checkRoomLocked(size uint64) error {
	if of, bound := b.boundLocked(); size > bound-min(bound, b.created) {
		return &shortage{of: of, name: b.nameLocked(of), bound: bound, left: bound - min(bound, b.created), size: size}
	}
	return nil
}

// changedLocked is called when created has changed. It needs mu.
func (b *Bank) changedLocked() {
	b.changes++
	if b.created > b.near {
		b.lender.Near()
	}
	select {
	case b.lowered <- struct{}{}:
	default: // no one waits
	}
}

// uncharge undoes charge of what was not created after all: others may have it.
func (b *Bank) uncharge(size uint64) {
	if size > 0 {
		b.discharge(size)
		freed.Add(1)
	}
}

// discharge undoes charge.
func (b *Bank) discharge(size uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.created -= size
	b.changedLocked()
}

// inUse is how many bytes this process has created and neither released nor cached.
func (b *Bank) inUse() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.created
	for _, a := range b.accounts {
		n -= a.Counters.Read(&a.Counters.Cached.Now)
	}
	return n
}

// SetReleaseThreshold sets how many bytes of unused memory are cached, if live says so, and returns the old value.
func (a *Account) SetReleaseThreshold(bytes uint64, live bool) (old uint64) {
	a.Bank.mu.Lock()
	old = a.Counters.Read(&a.Counters.Threshold)
	var out []*Memory
	if live {
		a.Counters.Set(&a.Counters.Threshold, bytes)
		out = a.evictLocked(bytes)
	}
	a.Bank.mu.Unlock()
	ReleaseAll(out) //nolint:errcheck // counted as quarantined
	return old
}

// Trim asks the driver again to release what it refused, and then releases cached memory, the oldest first, until
// at most keep bytes of it are left.
func (a *Account) Trim(keep uint64) (failed error) {
	b := a.Bank
	b.mu.Lock()
	refused := a.refused
	a.refused = nil
	b.mu.Unlock()
	for _, m := range refused {
		a.Counters.Sub(m.Size, &a.Counters.Quarantined)
		failed = errtext.Join(failed, "and", m.free())
	}
	b.mu.Lock()
	out := a.evictLocked(keep)
	b.mu.Unlock()
	return errtext.Join(failed, "and", ReleaseAll(out))
}

// put puts memory without references into the cache; false if it is to be released.
func (a *Account) put(m *Memory) bool {
	if !m.Cacheable.Load() || m.Prop.Location != a.Location { // no range of the Device asks for other memory
		return false
	}
	b := a.Bank
	b.mu.Lock()
	threshold := a.Counters.Read(&a.Counters.Threshold)
	if m.Size > threshold {
		b.mu.Unlock()
		return false
	}
	out := a.evictLocked(threshold - m.Size)
	a.cache.Put(m.Prop, m.Size, m.Handle)
	a.Counters.Raise(&a.Counters.Cached, m.Size, m.sample.End)
	b.mu.Unlock()
	ReleaseAll(out) //nolint:errcheck // counted as quarantined
	return true
}

// Cached returns the largest cached memory with property p from least to most bytes, with one reference; nil
// if there is none, or if another operation has the turn.
func (a *Account) Cached(p driver.Prop, least, most uint64, from *memsample.Source) *Memory {
	b := a.Bank
	if b.MayCreate() != nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.cache.Bytes == 0 {
		return nil
	}
	x := a.cache.Take(p, least, most)
	if x == nil {
		return nil
	}
	m := a.uncached(x, from)
	m.Cacheable.Store(true)
	return m
}

// uncached is the memory, with one reference, of a piece that was taken out of the cache.
func (a *Account) uncached(x *freelist.Piece[driver.Prop, driver.Handle], from *memsample.Source) *Memory {
	// A new object: a Segment of the old one has no claim to it.
	m := &Memory{account: a, Handle: x.Value, Size: x.Size, Prop: x.Kind, Created: true, Recycled: true}
	m.sample = memsample.Of(a.Samples, from, x.Size, 1)
	m.refs.Store(1)
	a.Counters.Lower(&a.Counters.Cached, x.Size, m.sample.Begin)
	return m
}

// evictLocked takes the oldest memory out of the cache until at most keep bytes are left. The memory is not
// cacheable, so that its release does not cache it again. It needs Bank.mu.
func (a *Account) evictLocked(keep uint64) (out []*Memory) {
	invariants.Held(&a.Bank.mu)
	from := &memsample.Source{Kind: memsample.Leaving}
	for a.cache.Bytes > keep {
		out = append(out, a.uncached(a.cache.Oldest(), from))
	}
	return out
}

// releaseTries is how often one piece of memory is asked for, each time after something was
// released, before the operation releases its locks. Others may take the released memory.
const releaseTries = 8

// RetryAfterRelease calls f. If f fails with ErrOutOfMemory and a caller waits for the memory, it has memory
// released and calls f again. It stops when no memory was released since the last try; another goroutine's
// release counts.
func (b *Bank) RetryAfterRelease(purpose Purpose, f func() error) error {
	for try := 1; ; try++ {
		seen := b.released.Load()
		err := f()
		if purpose != ForCaller || !Lacks(err) || isTurnTaken(err) || try == releaseTries || !b.releaseForOthers(seen) {
			return err
		}
	}
}

// pressureLasts is how long growth ahead takes nothing after a caller was short of memory.
const pressureLasts = 100 * time.Millisecond

// releaseForOthers has all Devices release what they can do without, and reports whether any memory was
// released since seen was read.
func (b *Bank) releaseForOthers(seen uint64) bool {
	b.pressureUntil.Store(time.Now().Add(pressureLasts).UnixNano())
	unlock := b.Releasing() // what another goroutine is about to release counts
	defer unlock()
	b.mu.Lock()
	all := slices.Clone(b.accounts)
	b.mu.Unlock()
	for _, a := range all {
		a.History.Add(history.Pressure, 0, 0, 0, "")
		if b.released.Load() == seen {
			a.Reclaim(0)
		}
	}
	return b.released.Load() != seen
}

// IsUnderPressure reports whether a caller has just run out of memory. Growth ahead then leaves released memory
// to such callers.
func (b *Bank) IsUnderPressure() bool { return time.Now().UnixNano() < b.pressureUntil.Load() }
