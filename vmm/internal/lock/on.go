//go:build race

package lock

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
)

// Ordered says whether the order is checked.
const Ordered = true

// position is what the checks know of a mutex.
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

// Asking for the goroutine is so slow that the checks look at one lock of eight, in
// stretches, unless CheckAll was called. What is not looked at can hide a wrong order,
// never make one.
var (
	all   atomic.Bool
	taken atomic.Uint64
)

// CheckAll has every lock checked from now on.
func CheckAll() { all.Store(true) }

func looking() bool { return all.Load() || taken.Add(1)/256%8 == 0 }

// take notes that the calling goroutine takes the lock, and panics if it holds one that
// comes after it. A try cannot wait, and so can take a lock in any order. It returns
// whether there is a note that drop has to undo.
func (p *position) take(try bool) (noted bool) {
	if !looking() {
		return false
	}
	by := goroutine()
	held.Lock()
	defer held.Unlock()
	for _, h := range held.by[by] {
		if !try && (h.level > p.level || h.level == p.level && h.key >= p.key) {
			panic(fmt.Sprintf("lock: level %d, key %d is taken while level %d, key %d is held", p.level, p.key, h.level, h.key))
		}
	}
	held.by[by] = append(held.by[by], p)
	return true
}

// drop undoes take, if the calling goroutine has a note.
func (p *position) drop() (noted bool) {
	by := goroutine()
	held.Lock()
	defer held.Unlock()
	mine := held.by[by]
	i := slices.Index(mine, p)
	if i < 0 {
		return false
	}
	if mine = slices.Delete(mine, i, i+1); len(mine) == 0 {
		delete(held.by, by)
	} else {
		held.by[by] = mine
	}
	return true
}

type mutex struct {
	mu    sync.Mutex
	noted bool // guarded by mu
	position
}

func (m *mutex) Lock() {
	noted := m.take(false)
	m.mu.Lock()
	m.noted = noted
}

func (m *mutex) TryLock() bool {
	ok := m.mu.TryLock()
	if ok {
		m.noted = m.take(true)
	}
	return ok
}

func (m *mutex) Unlock() {
	if m.noted {
		m.drop()
	}
	m.mu.Unlock()
}

type rwMutex struct {
	mu      sync.RWMutex
	noted   bool         // by a writer; guarded by mu
	readers atomic.Int64 // that have a note
	position
}

func (m *rwMutex) Lock() {
	noted := m.take(false)
	m.mu.Lock()
	m.noted = noted
}

func (m *rwMutex) Unlock() {
	if m.noted {
		m.drop()
	}
	m.mu.Unlock()
}

func (m *rwMutex) RLock() {
	if m.take(false) {
		m.readers.Add(1)
	}
	m.mu.RLock()
}

func (m *rwMutex) TryRLock() bool {
	ok := m.mu.TryRLock()
	if ok && m.take(true) {
		m.readers.Add(1)
	}
	return ok
}

func (m *rwMutex) RUnlock() {
	if m.readers.Load() > 0 && m.drop() {
		m.readers.Add(-1)
	}
	m.mu.RUnlock()
}
