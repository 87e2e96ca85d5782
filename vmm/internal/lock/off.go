//go:build !race

package lock

import "sync"

// Ordered says whether the order is checked.
const Ordered = false

// CheckAll has every lock checked from now on, where the order is checked.
func CheckAll() {}

type mutex struct{ sync.Mutex }

type rwMutex struct{ sync.RWMutex }

func (*mutex) at(Level, uint64) {}

func (*rwMutex) at(Level, uint64) {}
