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

// SetAround sets the bound of the system, and returns the old value. limit is the system's limit, which errors name.
func (b *Bank) SetAround(bytes uint64, limit string) (old uint64) {
	b.mu.Lock()
	old, b.bounds[Around], b.around = b.bounds[Around], bytes, limit
	b.mu.Unlock()
	b.countPools()
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
func (b *Bank) Limit() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return asLimit(b.bounds[Limit])
}

// SetLimit sets the limit, and returns the old one; 0 is none.
func (b *Bank) SetLimit(bytes uint64) (old uint64) {
	b.mu.Lock()
	old, b.bounds[Limit] = b.bounds[Limit], cmp.Or(bytes, math.MaxUint64)
	b.mu.Unlock()
	b.countPools()
	return asLimit(old)
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
