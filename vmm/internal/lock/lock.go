// Package lock is mutexes that know their place in an order. In builds with the race
// detector they panic when a goroutine takes one out of order. AssertHeld panics, in
// those builds and with the tag invariants, when a mutex is not held. In other builds
// they are plain mutexes.
package lock

// Level is a place in the order: a goroutine takes locks of rising levels. Locks of
// one level are taken by rising key.
type Level int

// assertHeld panics if the mutex can be had.
func assertHeld(m interface {
	TryLock() bool
	Unlock()
}) {
	if m.TryLock() {
		m.Unlock()
		panic("lock: a lock that has to be held is not")
	}
}
