package bank

import (
	"cmp"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/sizes"
)

// Memory is one piece of physical memory, counted by what refers to it: Chunks and mappings. When the
// last reference goes, the memory is cached or released. Safe for concurrent use.
type Memory struct {
	account   *Account
	Handle    driver.Handle
	Size      uint64
	Prop      driver.Prop
	Cacheable atomic.Bool // a range may have it next, since nothing outside this process can have it
	Created   bool        // counts against the limit; else it was imported
	Recycled  bool        // it was in the cache, so it may hold bytes of another range
	refs      atomic.Int64
	sample    *memsample.Sample // nil if it was not sampled
}

// Create makes memory with one reference. p's location is resolved already. With an error it returns the Bank
// that is short of memory.
func (a *Account) Create(size uint64, p driver.Prop, purpose Purpose, from *memsample.Source) (m *Memory, short *Bank, err error) {
	if err := a.Bank.charge(size, purpose); err != nil {
		return nil, a.Bank, err
	}
	if m, err = a.createCharged(size, p, purpose, from); err != nil {
		a.Bank.uncharge(size)
	}
	return m, a.home(p), err
}

// Request says what memory a range is to have.
type Request struct {
	Prop    driver.Prop
	Sizes   sizes.Ladder
	Fresh   bool // no cached memory
	Purpose Purpose
	From    memsample.Source
}

// Obtain adds memory of want bytes to batch: cached memory first, new memory for the rest. cached is how many
// pieces were cached. For a caller it is all or nothing; growth ahead keeps what it got.
func (a *Account) Obtain(batch []*Memory, want uint64, r *Request) (_ []*Memory, cached int, err error) {
	left, only := want, r.Sizes.Fixed
	for left > 0 && !r.Fresh {
		// The driver sets access chunk by chunk, so many small chunks cost more than new
		// memory. With an eighth as the least, a growth takes a few dozen.
		m := a.Cached(r.Prop, cmp.Or(only, left/8), min(left, cmp.Or(only, r.Sizes.Most)), &r.From)
		if m == nil {
			break
		}
		batch = append(batch, m)
		left -= m.Size
	}
	cached = len(batch)
	var charged uint64
	// All at once: what is beyond the limit creates nothing.
	if r.Purpose == ForCaller && left > 0 {
		for size := range r.Sizes.Chunks(left) {
			charged += size
		}
		if err = a.Bank.charge(charged, r.Purpose); err != nil {
			ReleaseAll(batch) //nolint:errcheck // cached, or counted as quarantined
			return batch[:0], 0, err
		}
		defer func() { a.Bank.uncharge(charged) }()
	}
	for size := range r.Sizes.Chunks(left) {
		var m *Memory
		if r.Purpose == ForGrowAhead {
			m, _, err = a.Create(size, r.Prop, r.Purpose, &r.From)
		} else if m, err = a.createCharged(size, r.Prop, r.Purpose, &r.From); err == nil {
			charged -= size
		}
		if err != nil {
			break
		}
		batch = append(batch, m)
	}
	if err != nil && r.Purpose == ForCaller {
		ReleaseAll(batch) //nolint:errcheck // cached, or counted as quarantined
		return batch[:0], 0, err
	}
	return batch, cached, err
}

// createCharged is Create of memory that counts against the limit already.
func (a *Account) createCharged(size uint64, p driver.Prop, purpose Purpose, from *memsample.Source) (m *Memory, err error) {
	home := a.home(p)
	err = home.RetryAfterRelease(purpose, func() error {
		if err := home.MayCreate(); err != nil {
			return err
		}
		h, err := a.Driver.Create(size, p)
		if err != nil {
			return err
		}
		m = a.adopt(h, size, p, true, from)
		// A network card may go on reading memory that it was shown.
		m.Cacheable.Store(p.Share == 0 && !p.RDMA)
		a.Counters.Count(1, &a.Counters.Creates)
		a.History.Add(history.Create, 0, size, 0, from.Name)
		return nil
	})
	return m, err
}

// home is the Bank of the memory's location.
func (a *Account) home(p driver.Prop) *Bank {
	if p.Location != a.Location {
		if b := a.Home(p.Location); b != nil {
			return b
		}
	}
	return a.Bank
}

// Imported counts a handle that the driver has returned, of memory that was imported.
func (a *Account) Imported(h driver.Handle, size uint64, p driver.Prop, from *memsample.Source) *Memory {
	return a.adopt(h, size, p, false, from)
}

func (a *Account) adopt(h driver.Handle, size uint64, p driver.Prop, created bool, from *memsample.Source) *Memory {
	m := &Memory{account: a, Handle: h, Size: size, Prop: p, Created: created, sample: memsample.Of(a.Samples, from, size, 1)}
	m.refs.Store(1)
	a.Counters.Raise(a.Counters.Of(created), size, m.sample.Begin)
	return m
}

// Driver is the driver that made the memory.
func (m *Memory) Driver() driver.Driver { return m.account.Driver }

// Refs is how many references there are.
func (m *Memory) Refs() int64 { return m.refs.Load() }

// Retain adds a reference; false if there was none left.
func (m *Memory) Retain() bool {
	for {
		n := m.refs.Load()
		if n == 0 {
			return false
		}
		if m.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release takes a reference away. After the last one the memory is cached, or goes back to the driver.
func (m *Memory) Release() error {
	if m.refs.Add(-1) > 0 {
		return nil
	}
	if m.account.put(m) {
		freed.Add(1)
		return nil
	}
	return m.free()
}

// ReleaseAll releases memory, and returns what the driver refused.
func ReleaseAll(all []*Memory) (failed error) {
	for _, m := range all {
		if err := m.Release(); err != nil {
			failed = errtext.Join(failed, "and", err)
		}
	}
	return failed
}

// free gives memory without references back to the driver. If the driver refuses, it is counted as quarantined:
// Trim, and growth that runs out of memory, try again.
func (m *Memory) free() error {
	a := m.account
	if err := a.Driver.Release(m.Handle); err != nil {
		a.Counters.Add(m.Size, &a.Counters.Quarantined)
		a.Bank.mu.Lock()
		defer a.Bank.mu.Unlock()
		a.refused = append(a.refused, m)
		return err
	}
	a.Counters.Lower(a.Counters.Of(m.Created), m.Size, func() {
		if m.Created { // else it is its owner's still
			a.Counters.Releases++
			a.Counters.FreedBytes += m.Size
		}
		m.sample.End()
	})
	if m.Created {
		a.History.Add(history.Release, 0, m.Size, 0, "")
		a.Bank.discharge(m.Size)
	} else {
		a.History.Add(history.Unimport, 0, m.Size, 0, "")
	}
	a.home(m.Prop).released.Add(m.Size)
	freed.Add(1)
	return nil
}
