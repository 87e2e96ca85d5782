package lock_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

const first, second lock.Level = 1, 2

func two(a, b lock.Level, keyA, keyB uint64) (m, n *lock.Mutex) {
	m, n = &lock.Mutex{}, &lock.Mutex{}
	m.At(a, keyA)
	n.At(b, keyB)
	return m, n
}

// TestInversion: a deliberate inversion is caught, also of readers, and of two locks
// of one level; the order itself is fine.
func TestInversion(t *testing.T) {
	if !lock.Ordered {
		t.Skip("needs the race detector: make race")
	}
	for name, c := range map[string]struct {
		levels [2]lock.Level
		keys   [2]uint64
		fine   bool
	}{
		"in order":            {[2]lock.Level{first, second}, [2]uint64{2, 1}, true},
		"inverted":            {[2]lock.Level{second, first}, [2]uint64{1, 2}, false},
		"one level, by key":   {[2]lock.Level{first, first}, [2]uint64{1, 2}, true},
		"one level, inverted": {[2]lock.Level{first, first}, [2]uint64{2, 1}, false},
		"the same key":        {[2]lock.Level{first, first}, [2]uint64{1, 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, n := two(c.levels[0], c.levels[1], c.keys[0], c.keys[1])
			m.Lock()
			defer m.Unlock()
			take := func() {
				n.Lock()
				defer n.Unlock()
			}
			if c.fine {
				require.NotPanics(t, take)
			} else {
				require.Panics(t, take)
			}
			require.True(t, n.TryLock(), "a try waits for nothing")
			n.Unlock()
		})
	}
	var r lock.RWMutex
	r.At(first, 0)
	m, _ := two(second, second, 0, 1)
	m.Lock()
	require.Panics(t, r.RLock)
	m.Unlock()
	r.RLock()
	defer r.RUnlock()
	require.NotPanics(t, func() {
		m.Lock()
		defer m.Unlock()
	})
}

// TestWaits: a wait beside a lock that must not be held is caught.
func TestWaits(t *testing.T) {
	if !lock.Ordered {
		t.Skip("needs the race detector: make race")
	}
	for level, fine := range map[lock.Level]bool{lock.ReservationClose: true, lock.Grants: true, lock.Len: false, lock.Mapping: false, lock.Reservation: false} {
		var m lock.Mutex
		m.At(level, 1)
		m.Lock()
		if fine {
			require.NotPanics(t, lock.Waits)
		} else {
			require.Panics(t, lock.Waits)
		}
		m.Unlock()
		require.NotPanics(t, lock.Waits)
	}
}
