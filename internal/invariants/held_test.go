package invariants_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/invariants"
)

// TestHeld: a lock that is free is not held; one that is held for reading is.
func TestHeld(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("needs the tag invariants: make race")
	}
	var m sync.Mutex
	require.Panics(t, func() { invariants.Held(&m) })
	m.Lock()
	require.NotPanics(t, func() { invariants.Held(&m) })
	m.Unlock()
	var r sync.RWMutex
	require.Panics(t, func() { invariants.Held(&r) })
	r.RLock()
	require.NotPanics(t, func() { invariants.Held(&r) })
	r.RUnlock()
}
