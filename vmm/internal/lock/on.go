//go:build race && (amd64 || arm64)

package lock

import (
	"fmt"
	"slices"
	"sync"
)

// Ordered reports whether the order is checked.
const Ordered = true

// position is what the checks know of a mutex.
type position struct {
	level Level
	key   uint64
}

// held is what each goroutine holds, in the order in which it took it.
var held = struct {
	sync.Mutex
	by map[uintptr][]*position
}{by: map[uintptr][]*position{}}

// goroutine tells the calling goroutine from all others that run.
func goroutine() uintptr

func (p *position) at(l Level, key uint64) { p.level, p.key = l, key }

// take panics if the goroutine holds what comes later in the order. takeTried does not: a TryLock
// waits for no other goroutine.
func (p *position) take()      { p.note(false) }
func (p *position) takeTried() { p.note(true) }

func (p *position) note(tried bool) {
	by := goroutine()
	held.Lock()
	defer held.Unlock()
	for _, h := range held.by[by] {
		if !tried && (h.level > p.level || h.level == p.level && h.key >= p.key) {
			panic(fmt.Sprintf("lock: level %d, key %d is taken while level %d, key %d is held", p.level, p.key, h.level, h.key))
		}
	}
	held.by[by] = append(held.by[by], p)
}

// drop undoes take.
func (p *position) drop() {
	by := goroutine()
	held.Lock()
	defer held.Unlock()
	mine := held.by[by]
	i := slices.Index(mine, p)
	if i < 0 {
		panic(fmt.Sprintf("lock: level %d, key %d is given back by a goroutine that has not taken it", p.level, p.key))
	}
	held.by[by] = slices.Delete(mine, i, i+1) // kept when empty, so that the checks allocate nothing
}

type mutex struct {
	mu sync.Mutex
	position
}

func (m *mutex) Lock() {
	m.take()
	m.mu.Lock()
}

func (m *mutex) TryLock() bool {
	ok := m.mu.TryLock()
	if ok {
		m.takeTried()
	}
	return ok
}

func (m *mutex) Unlock() {
	m.drop()
	m.mu.Unlock()
}

type rwMutex struct {
	mu sync.RWMutex
	position
}

func (m *rwMutex) Lock() {
	m.take()
	m.mu.Lock()
}

func (m *rwMutex) Unlock() {
	m.drop()
	m.mu.Unlock()
}

func (m *rwMutex) RLock() {
	m.take()
	m.mu.RLock()
}

func (m *rwMutex) TryRLock() bool {
	ok := m.mu.TryRLock()
	if ok {
		m.takeTried()
	}
	return ok
}

func (m *rwMutex) RUnlock() {
	m.drop()
	m.mu.RUnlock()
}

// heldInWaits are the levels that may be held across a wait.
var heldInWaits = []Level{0, ReservationClose, Grants, LegacyPairs, Module, Graph, Stream}

// Waits says that the caller is about to wait for a device, for copies or for a function of the
// program's: where the order is checked, it panics if a lock is held that must not be meanwhile.
func Waits() {
	by := goroutine()
	held.Lock()
	defer held.Unlock()
	for _, h := range held.by[by] {
		if !slices.Contains(heldInWaits, h.level) {
			panic(fmt.Sprintf("lock: a wait while level %d, key %d is held", h.level, h.key))
		}
	}
}
