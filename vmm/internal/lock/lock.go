// Package lock is mutexes that know their place in the order in which a goroutine takes the locks
// of package vmm. In builds with the race detector they panic when one is taken out of order, or
// held where a wait begins (see Waits). In other builds they are plain mutexes.
package lock

// Level is a place in the order: a goroutine takes locks of rising levels, and locks of
// one level by rising key.
type Level int

// The levels, from the first to the last. Package vmm's documentation draws them as a
// tree and says what each is held for.
const (
	_ Level = iota
	ReservationClose
	Grants
	Growth
	Len
	Pressure
	Sweep
	Mapping
	LegacyPairs
	Module
	Graph
	Stream
	Open
	StreamRoom
	Gate
	Streams
	Event
	Reservation
	Device
	Process
	Bank
	Events
	Staging
	Captures
	Counters
)

// Mutex is a mutex with a place in the order. Its zero value comes before all others.
type Mutex struct{ mutex }

// At gives the mutex its place, before its first use.
func (m *Mutex) At(l Level, key uint64) { m.at(l, key) }

// RWMutex is a Mutex that readers share.
type RWMutex struct{ rwMutex }

// At gives the mutex its place, before its first use.
func (m *RWMutex) At(l Level, key uint64) { m.at(l, key) }
