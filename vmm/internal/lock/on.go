//go:build race

package lock

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
)

// Ordered says whether the order is checked.
const Ordered = true

// place is what the checks know of a mutex.
type place struct {
	level Level
	key   uint64
}

// held is what each goroutine holds, in the order in which it took it.
var held = struct {
	sync.Mutex
	by map[uint64][]*place
}{by: map[uint64][]*place{}}

// goroutine is the number of the calling goroutine. It is slow: the runtime writes the
// whole stack to say it.
func goroutine() uint64 {
	var buf [64]byte
	text, _, _ := bytes.Cut(bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine ")), []byte(" "))
	n, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// take notes that the calling goroutine takes the lock, and panics if it holds one that
// comes after it. A try cannot wait, and so can take a lock in any order.
func (p *place) take(try bool) (by uint64) {
	by = goroutine()
	held.Lock()
	defer held.Unlock()
	for _, h := range held.by[by] {
		if !try && (h.level > p.level || h.level == p.level && h.key >= p.key) {
			panic(fmt.Sprintf("lock: level %d, key %d is taken while level %d, key %d is held", p.level, p.key, h.level, h.key))
		}
	}
	held.by[by] = append(held.by[by], p)
	return by
}

// drop undoes take.
func (p *place) drop(by uint64) {
	held.Lock()
	defer held.Unlock()
	all := held.by[by]
	i := slices.Index(all, p)
	if all = slices.Delete(all, i, i+1); len(all) == 0 {
		delete(held.by, by)
	} else {
		held.by[by] = all
	}
}

// Mutex is a mutex with a place in the order. Its zero value comes before all others.
type Mutex struct {
	mu sync.Mutex
	by uint64 // the goroutine that holds it
	place
}

// At gives the mutex its place, before its first use.
func (m *Mutex) At(l Level, key uint64) { m.place = place{l, key} }

// Lock is sync.Mutex.Lock.
func (m *Mutex) Lock() {
	by := m.take(false)
	m.mu.Lock()
	m.by = by
}

// TryLock is sync.Mutex.TryLock.
func (m *Mutex) TryLock() bool {
	ok := m.mu.TryLock()
	if ok {
		m.by = m.take(true)
	}
	return ok
}

// Unlock is sync.Mutex.Unlock.
func (m *Mutex) Unlock() {
	m.drop(m.by)
	m.mu.Unlock()
}

// AssertHeld panics if no goroutine holds m.
func (m *Mutex) AssertHeld() { assertHeld(&m.mu) }

// RWMutex is a Mutex that readers share.
type RWMutex struct {
	mu sync.RWMutex
	place
}

// At gives the mutex its place, before its first use.
func (m *RWMutex) At(l Level, key uint64) { m.place = place{l, key} }

// Lock is sync.RWMutex.Lock.
func (m *RWMutex) Lock() {
	m.take(false)
	m.mu.Lock()
}

// Unlock is sync.RWMutex.Unlock.
func (m *RWMutex) Unlock() {
	m.drop(goroutine())
	m.mu.Unlock()
}

// RLock is sync.RWMutex.RLock.
func (m *RWMutex) RLock() {
	m.take(false)
	m.mu.RLock()
}

// TryRLock is sync.RWMutex.TryRLock.
func (m *RWMutex) TryRLock() bool {
	ok := m.mu.TryRLock()
	if ok {
		m.take(true)
	}
	return ok
}

// RUnlock is sync.RWMutex.RUnlock.
func (m *RWMutex) RUnlock() {
	m.drop(goroutine())
	m.mu.RUnlock()
}

// AssertHeld panics if no goroutine holds m, to write or to read.
func (m *RWMutex) AssertHeld() { assertHeld(&m.mu) }
