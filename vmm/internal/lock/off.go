//go:build !race

package lock

import (
	"sync"

	"github.com/cuvmm/cuvmm/internal/invariants"
)

// Ordered says whether the order is checked.
const Ordered = false

// Mutex is a mutex with a place in the order. Its zero value comes before all others.
type Mutex struct{ sync.Mutex }

// RWMutex is a Mutex that readers share.
type RWMutex struct{ sync.RWMutex }

// At gives the mutex its place, before its first use.
func (*Mutex) At(Level, uint64) {}

// At gives the mutex its place, before its first use.
func (*RWMutex) At(Level, uint64) {}

// AssertHeld panics, with the tag invariants, if no goroutine holds m.
func (m *Mutex) AssertHeld() {
	if invariants.Enabled {
		assertHeld(&m.Mutex)
	}
}

// AssertHeld panics, with the tag invariants, if no goroutine holds m, to write or to
// read.
func (m *RWMutex) AssertHeld() {
	if invariants.Enabled {
		assertHeld(&m.RWMutex)
	}
}
