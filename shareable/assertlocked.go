package shareable

import (
	"sync"

	"github.com/cuvmm/cuvmm/internal/invariants"
)

// assertLocked panics in builds with -tags invariants if mu is not locked, for
// reading at least. Functions whose names end in Locked call it.
func assertLocked(mu interface {
	sync.Locker
	TryLock() bool
}) {
	if invariants.Enabled && mu.TryLock() {
		mu.Unlock()
		//nolint:forbidigo // only in builds of our own tests
		panic("shareable: the caller does not hold the lock")
	}
}
