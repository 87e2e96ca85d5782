package bank

import (
	"math"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Memory that no Account has created counts against the bounds, too: plain memory, what a process before this one has
// created (Counted), and pools of the driver's (Outside). Other libraries change what such a pool has reserved. So it is
// read again around each Change while there is a bound, when a bound is set, and before memory is given.

// Counted is memory of one owner, outside Accounts. Safe for concurrent use.
type Counted struct {
	of    *Bank
	bytes uint64 // guarded by Bank.mu
}

// Counted is memory of which there is none yet.
func (b *Bank) Counted() *Counted { return &Counted{of: b} }

// Charge counts n bytes more, which are about to be allocated, or returns ErrOutOfMemory. It has nothing released.
func (c *Counted) Charge(n uint64) error {
	if err := c.of.CheckSize(n); err != nil {
		return err
	}
	if err := c.of.chargeOnce(n); err != nil {
		return err
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.bytes += n
	return nil
}

// Set counts what there is, even beyond the bounds.
func (c *Counted) Set(n uint64) {
	b := c.of
	b.mu.Lock()
	less := n < c.bytes
	b.created += n - c.bytes // it may wrap around, as the difference does
	c.bytes = n
	b.changedLocked()
	b.mu.Unlock()
	if less {
		freed.Add(1)
	}
}

// driverPool is a pool of the driver's, which counts once however often it is open.
type driverPool struct {
	Counted
	pool driver.Pool

	// changes is held while what is reserved changes and is counted: a reader beside an Alloc would take back what that has
	// counted. Changes that need not be counted share it, and a bound that appears waits for them. It comes before Bank.mu.
	changes sync.RWMutex

	users []*Outside // nil: the pool is closed. Guarded by Bank.mu
}

// Outside is one user of a pool of the driver's. Safe for concurrent use.
type Outside struct {
	*driverPool
	read func() (reserved, used uint64, err error)
}

// Outside is a user of a pool, until Close. read says what the driver has reserved for the pool, and what of that is used.
func (b *Bank) Outside(pool driver.Pool, read func() (reserved, used uint64, err error)) *Outside {
	o := &Outside{read: read}
	b.mu.Lock()
	i := slices.IndexFunc(b.pools, func(p *driverPool) bool { return p.pool == pool })
	if i < 0 {
		i, b.pools = len(b.pools), append(b.pools, &driverPool{Counted: Counted{of: b}, pool: pool})
	}
	o.driverPool = b.pools[i]
	o.users = append(o.users, o)
	b.mu.Unlock()
	b.countPools()
	return o
}

// Change calls f, which has the driver reserve or release memory of the pool. Where there is a bound, it counts what there
// is then, and before f the most that the driver reserves for the n bytes that f allocates, if the pool has too little.
func (o *Outside) Change(n, most uint64, f func() error) error {
	o.changes.RLock()
	if !o.of.isBounded() {
		defer o.changes.RUnlock()
		return f()
	}
	o.changes.RUnlock()
	o.changes.Lock()
	defer o.changes.Unlock()
	defer o.countLocked()
	reserved, used, err := o.read()
	if err != nil {
		return err
	}
	o.Set(reserved)
	if n > reserved-min(reserved, used) {
		if err = o.Charge(most); err != nil {
			return err
		}
	}
	return f()
}

// Close ends the use. destroy destroys the pool for all its users; nil: it stays. If destroy fails, nothing changes.
func (o *Outside) Close(destroy func() error) error {
	o.changes.Lock()
	defer o.changes.Unlock()
	if destroy != nil {
		if err := destroy(); err != nil {
			return err
		}
	}
	b := o.of
	b.mu.Lock()
	o.users = slices.DeleteFunc(o.users, func(u *Outside) bool { return destroy != nil || u == o })
	closed := len(o.users) == 0
	if closed {
		b.pools = slices.DeleteFunc(b.pools, func(p *driverPool) bool { return p == o.driverPool })
	}
	b.mu.Unlock()
	if closed {
		o.Set(0)
	}
	return nil
}

// countLocked counts what the driver has reserved, as far as it says so. It needs changes.
func (p *driverPool) countLocked() {
	p.of.mu.Lock()
	var first *Outside
	if len(p.users) > 0 {
		first = p.users[0]
	}
	p.of.mu.Unlock()
	if first == nil {
		p.Set(0)
		return
	}
	if reserved, _, err := first.read(); err == nil {
		p.Set(reserved)
	}
}

// countPools counts all pools of the driver's, if there is a bound. The caller holds no lock under which a pool changes.
func (b *Bank) countPools() {
	if !b.isBounded() {
		return
	}
	b.mu.Lock()
	all := slices.Clone(b.pools)
	b.mu.Unlock()
	for _, p := range all {
		p.changes.Lock()
		p.countLocked()
		p.changes.Unlock()
	}
}

// isBounded reports whether there is a bound.
func (b *Bank) isBounded() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, bound := b.boundLocked()
	return bound != math.MaxUint64
}
