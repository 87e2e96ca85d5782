// Package arena cuts addresses out of large reservations: CUDA takes the longer for a reservation
// the more of them there are. It knows no memory. Files:
//
//	arena.go  Arenas: Take, Give, FreeEmpty
//	spans.go  the free addresses of one
package arena

import (
	"cmp"
	"errors"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Size is how many bytes of addresses an arena has, and Most how many it gives away at once, so that
// what does not fit at its end is little.
const (
	Size = 1 << 40
	Most = Size / 16
)

// Arenas are those of a driver. The zero value has none. Safe for concurrent use.
type Arenas struct {
	// Reserve and Free are the driver's calls.
	Reserve func(size, align uint64) (driver.Ptr, error)
	Free    func(p driver.Ptr, size uint64) error
	Budget  Budget

	mu  sync.Mutex // held across Reserve and Free
	all []*arena   // by address
}

// Budget is how many bytes of addresses the process may have.
type Budget interface {
	// Make counts an arena that no reservation is in yet; false if there is no room for it.
	Make(size uint64) bool
	// Unmake undoes Make.
	Unmake(size uint64)
	// Take counts a reservation in an arena; false if that is too much. Give undoes it.
	Take(size uint64) bool
	Give(size uint64)
}

type arena struct {
	base driver.Ptr
	unit uint64 // sizes and gaps are multiples of it
	used uint64 // units that were taken
	free spans  // in units from base
}

// Take returns size bytes of addresses, a multiple of unit, that begin at one. The unit behind them
// goes to no caller. Freed addresses are used again last. Take returns false if no arena has room and
// none can be made: the caller then asks the driver. A driver without enough addresses is no error;
// any other error of the driver is returned.
func (a *Arenas) Take(size, unit uint64) (p driver.Ptr, ok bool, err error) {
	if size > Most {
		return 0, false, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.Budget.Take(size) {
		return 0, false, nil
	}
	n := size/unit + 1
	for _, again := range []bool{false, true} {
		for _, x := range a.all {
			if x.unit != unit {
				continue
			}
			if at, ok := x.free.take(n, again); ok {
				return x.handOut(at, n), true, nil
			}
		}
	}
	x, err := a.makeLocked(unit)
	if x == nil {
		a.Budget.Give(size)
		return 0, false, err
	}
	at, _ := x.free.take(n, false)
	return x.handOut(at, n), true, nil
}

func (x *arena) handOut(at, n uint64) driver.Ptr {
	x.used += n
	return x.base + driver.Ptr(at*x.unit)
}

// makeLocked makes an arena; nil if the budget, or the driver, has no room for it.
func (a *Arenas) makeLocked(unit uint64) (*arena, error) {
	if !a.Budget.Make(Size) {
		return nil, nil
	}
	base, err := a.Reserve(Size, unit)
	if err != nil {
		a.Budget.Unmake(Size)
		if errors.Is(err, driver.ErrAddressSpace) || errors.Is(err, driver.ErrInvalid) {
			err = nil
		}
		return nil, err
	}
	x := &arena{base: base, unit: unit, free: newSpans(Size / unit)}
	i, _ := a.findLocked(base)
	a.all = slices.Insert(a.all, i, x)
	return x, nil
}

// findLocked is where the arena that begins at p is, or would be.
func (a *Arenas) findLocked(p driver.Ptr) (i int, found bool) {
	return slices.BinarySearchFunc(a.all, p, func(x *arena, p driver.Ptr) int { return cmp.Compare(x.base, p) })
}

// Give takes addresses back that Take has returned; false if they are of no arena. Of the arenas
// that are empty one stays.
func (a *Arenas) Give(p driver.Ptr, size uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	i, found := a.findLocked(p)
	if !found {
		i--
	}
	if i < 0 || uint64(p-a.all[i].base) >= Size {
		return false
	}
	x := a.all[i]
	n := size/x.unit + 1
	x.free.give(uint64(p-x.base)/x.unit, n)
	x.used -= n
	a.Budget.Give(size)
	if x.used == 0 && slices.ContainsFunc(a.all, func(y *arena) bool { return y != x && y.used == 0 }) {
		_ = a.freeLocked(x) // FreeEmpty tries again, and tells
	}
	return true
}

// FreeEmpty gives the empty arenas back to the driver. After an error it can be called again.
func (a *Arenas) FreeEmpty() (err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range slices.Clone(a.all) {
		if x.used == 0 {
			err = errors.Join(err, a.freeLocked(x))
		}
	}
	return err
}

func (a *Arenas) freeLocked(x *arena) error {
	if err := a.Free(x.base, Size); err != nil {
		return err
	}
	a.all = slices.DeleteFunc(a.all, func(y *arena) bool { return y == x })
	a.Budget.Unmake(Size)
	return nil
}
