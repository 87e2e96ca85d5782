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

// position is where a mutex stands in the order.
type position struct {
	level Level
	key   uint64
}

// held is what each goroutine holds, in the order in which it took it.
var held = struct {
	sync.Mutex
	by map[uint64][]*position
}{by: map[uint64][]*position{}}

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

func (p *position) at(l Level, key uint64) { p.level, p.key = l, key }

// take notes that the calling goroutine takes the lock, and panics if it holds one that
// comes after it. A try cannot wait, and so can take a lock in any order.
func (p *position) take(try bool) {
	by := goroutine()
	held.Lock()
	defer held.Unlock()
	for _, h := range held.by[by] {
		if !try && (h.level > p.level || h.level == p.level && h.key >= p.key) {
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
	all := held.by[by]
	i := slices.Index(all, p)
	if i < 0 {
		panic(fmt.Sprintf("lock: level %d, key %d is given up by a goroutine that does not hold it", p.level, p.key))
	}
	if all = slices.Delete(all, i, i+1); len(all) == 0 {
		delete(held.by, by)
	} else {
		held.by[by] = all
	}
}

type mutex struct {
	mu sync.Mutex
	position
}

func (m *mutex) Lock() {
	m.take(false)
	m.mu.Lock()
}

func (m *mutex) TryLock() bool {
	ok := m.mu.TryLock()
	if ok {
		m.take(true)
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
	m.take(false)
	m.mu.Lock()
}

func (m *rwMutex) TryLock() bool {
	ok := m.mu.TryLock()
	if ok {
		m.take(true)
	}
	return ok
}

func (m *rwMutex) Unlock() {
	m.drop()
	m.mu.Unlock()
}

func (m *rwMutex) RLock() {
	m.take(false)
	m.mu.RLock()
}

func (m *rwMutex) TryRLock() bool {
	ok := m.mu.TryRLock()
	if ok {
		m.take(true)
	}
	return ok
}

func (m *rwMutex) RUnlock() {
	m.drop()
	m.mu.RUnlock()
}
