package bank

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Bound is one of the bounds on what this process creates. The least of them counts.
type Bound int

// Bounds. MaxUint64 is none.
const (
	Limit  Bound = iota // Device.SetLimit: the most there can be
	Lease               // what a Lender has lent, which may rise
	Around              // what limits of the system around the process leave, which may rise
	bounds
)

func (k Bound) String() string { return [...]string{"limit", "lease", "part of the system's limit"}[k] }

var unbounded = [bounds]uint64{math.MaxUint64, math.MaxUint64, math.MaxUint64}

// Bound is how many bytes this process may create because of k.
func (b *Bank) Bound(k Bound) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bounds[k]
}

// SetBound sets a bound that is neither the lease nor that of the system, and returns the old value.
func (b *Bank) SetBound(k Bound, bytes uint64) (old uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, b.bounds[k] = b.bounds[k], bytes
	return old
}

// SetAround sets the bound of the system, and returns the old value. limit is the system's limit, which errors name.
func (b *Bank) SetAround(bytes uint64, limit string) (old uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, b.bounds[Around], b.around = b.bounds[Around], bytes, limit
	return old
}

// nameLocked is what errors call a bound. It needs mu.
func (b *Bank) nameLocked(k Bound) string {
	if k == Around && b.around != "" {
		return "part of " + b.around
	}
	return k.String()
}

// Limit is the limit as Device.SetLimit has it: 0 is none.
func (b *Bank) Limit() uint64 { return asLimit(b.Bound(Limit)) }

// SetLimit sets the limit, and returns the old one; 0 is none.
func (b *Bank) SetLimit(bytes uint64) (old uint64) {
	return asLimit(b.SetBound(Limit, cmp.Or(bytes, math.MaxUint64)))
}

// asLimit is a bound for people, to whom 0 is none.
func asLimit(bound uint64) uint64 {
	if bound == math.MaxUint64 {
		return 0
	}
	return bound
}

// boundLocked is the bound that counts. It needs mu.
func (b *Bank) boundLocked() (k Bound, bytes uint64) {
	k, bytes = Limit, b.bounds[Limit]
	for i, x := range b.bounds {
		if x < bytes {
			k, bytes = Bound(i), x
		}
	}
	return k, bytes
}

// shortage is an ErrOutOfMemory: a bound leaves less than an operation needs.
type shortage struct {
	of                Bound
	name              string
	bound, left, size uint64
}

func (s *shortage) Error() string {
	return fmt.Sprintf("%v: %s are left of this process's %s of %s", driver.ErrOutOfMemory, errtext.Size(s.left), s.name, errtext.Size(s.bound))
}

func (s *shortage) Unwrap() error { return driver.ErrOutOfMemory }

// lacksLease is how many bytes an operation needs beyond what this process has created, if it has failed since the
// lease is short.
func lacksLease(err error) (size uint64, short bool) {
	var s *shortage
	if errors.As(err, &s) && s.of == Lease {
		return s.size, true
	}
	return 0, false
}

// Outside is memory that the driver allocates by itself, for a pool of its own or as plain memory. It counts against
// the bounds. Safe for concurrent use.
type Outside struct {
	of    *Bank
	bytes uint64 // guarded by Bank.mu
}

// Outside is such memory, of which there is none yet.
func (b *Bank) Outside() *Outside { return &Outside{of: b} }

// IsBounded reports whether there is a bound.
func (o *Outside) IsBounded() bool {
	o.of.mu.Lock()
	defer o.of.mu.Unlock()
	_, bound := o.of.boundLocked()
	return bound != math.MaxUint64
}

// Reserve counts n bytes that are about to be allocated, or returns ErrOutOfMemory. It has nothing released.
func (o *Outside) Reserve(n uint64) error {
	if err := o.of.CheckSize(n); err != nil {
		return err
	}
	if err := o.of.chargeOnce(n); err != nil {
		return err
	}
	o.of.mu.Lock()
	defer o.of.mu.Unlock()
	o.bytes += n
	return nil
}

// Set counts what there is.
func (o *Outside) Set(n uint64) {
	b := o.of
	b.mu.Lock()
	less := n < o.bytes
	b.created += n - o.bytes // it may wrap around, as the difference does
	o.bytes = n
	b.changedLocked()
	b.mu.Unlock()
	if less {
		freed.Add(1)
	}
}
