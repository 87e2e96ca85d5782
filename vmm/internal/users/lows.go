package users

import (
	"math"
	"slices"
	"sync"
)

// Lows are the lowest lengths of a range since each of the reads began that are under way. Safe for concurrent
// use; its zero value has none.
type Lows struct {
	mu    sync.Mutex // nothing is locked while it is held
	all   []*uint64
	spare []*uint64
}

// Begin notes lengths from now on, until End.
func (l *Lows) Begin() (lowest *uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := len(l.spare) - 1; last >= 0 {
		lowest, l.spare = l.spare[last], l.spare[:last]
	} else {
		lowest = new(uint64)
	}
	*lowest = math.MaxUint64
	l.all = append(l.all, lowest)
	return lowest
}

// End ends what Begin has begun.
func (l *Lows) End(lowest *uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.all, lowest)
	l.all = slices.Delete(l.all, i, i+1)
	l.spare = append(l.spare, lowest)
}

// Lowest is the lowest length so far that a read has noted.
func (l *Lows) Lowest(lowest *uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *lowest
}

// Lower notes that Len has moved down to n.
func (l *Lows) Lower(n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lowest := range l.all {
		*lowest = min(*lowest, n)
	}
}
