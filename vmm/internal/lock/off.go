//go:build !race || !(amd64 || arm64)

package lock

import "sync"

// Ordered reports whether the order is checked.
const Ordered = false

type mutex struct{ sync.Mutex }

type rwMutex struct{ sync.RWMutex }

func (*mutex) at(Level, uint64) {}

func (*rwMutex) at(Level, uint64) {}

// Waits says that the caller is about to wait for a device, for copies or for a function of the
// program's: where the order is checked, it panics if a lock is held that must not be meanwhile.
func Waits() {}
