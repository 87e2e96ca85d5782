package vmm

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/internal/errtext"
)

// allocation is a door.Allocation. A nil one is of no memory.
type allocation struct {
	of   *driverState
	at   Ptr
	size uint64

	users int // of which Retire was not called; guarded by allocations.mu

	mu    sync.RWMutex // shared by launches of graphs that use it; a leaf
	freed bool         // or about to be
}

// allocations is the Allocations of a driver that have users, by address.
type allocations struct {
	mu  sync.Mutex // a leaf
	all []*allocation
}

// noteAllocation is door.VMM.NoteAllocation.
func (d *Device) noteAllocation(at Ptr, n uint64) *allocation {
	if d == nil || d.state == nil || n == 0 {
		return nil
	}
	t := &d.state.parent.allocations
	t.mu.Lock()
	defer t.mu.Unlock()
	i, there := t.placeLocked(at)
	if !there {
		t.all = slices.Insert(t.all, i, &allocation{of: d.state.parent, at: at, size: n})
	}
	t.all[i].users++
	return t.all[i]
}

// Retire is door.Allocation.Retire.
func (a *allocation) Retire() {
	if a == nil {
		return
	}
	t := &a.of.allocations
	t.mu.Lock()
	a.users--
	last := a.users == 0
	if i, there := t.placeLocked(a.at); last && there && t.all[i] == a {
		t.all = slices.Delete(t.all, i, i+1) // the driver may hand the addresses out again at once
	}
	t.mu.Unlock()
	if last {
		a.setFreed(true)
	}
}

// Restore is door.Allocation.Restore.
func (a *allocation) Restore() {
	if a == nil {
		return
	}
	t := &a.of.allocations
	t.mu.Lock()
	a.users++
	first := a.users == 1
	if i, there := t.placeLocked(a.at); first && !there {
		t.all = slices.Insert(t.all, i, a)
	}
	t.mu.Unlock()
	if first {
		a.setFreed(false)
	}
}

func (a *allocation) setFreed(to bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.freed = to
}

// lock keeps the memory from being freed until unlock.
func (a *allocation) lock() error {
	a.mu.RLock()
	if a.freed && !a.of.hooks.noAllocationCheck {
		a.mu.RUnlock()
		return fmt.Errorf("%w: %s at %v was freed", ErrClosed, errtext.Size(a.size), a.at)
	}
	return nil
}

func (a *allocation) unlock() { a.mu.RUnlock() }

// placeLocked is where memory that begins at p is listed, or would be.
func (t *allocations) placeLocked(p Ptr) (i int, there bool) {
	return slices.BinarySearchFunc(t.all, p, func(a *allocation, p Ptr) int { return cmp.Compare(a.at, p) })
}

// find is the Allocation that p lies in, or nil.
func (t *allocations) find(p Ptr) *allocation {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, there := t.placeLocked(p)
	if !there {
		i--
	}
	if i < 0 || p-t.all[i].at >= Ptr(t.all[i].size) {
		return nil
	}
	return t.all[i]
}
