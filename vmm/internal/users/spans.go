package users

import "slices"

// Spans are spans that the program has locked while it queues work of its own. Each has a number.
// The zero value has none.
type Spans struct {
	last     uint64
	all      []span
	unlocked chan struct{} // closed at the next Unlock; nil if no one waits
}

type span struct{ n, off, end uint64 }

// Lock adds a span, and returns its number.
func (l *Spans) Lock(off, end uint64) (n uint64) {
	l.last++
	l.all = append(l.all, span{l.last, off, end})
	return l.last
}

// Unlock removes a span.
func (l *Spans) Unlock(n uint64) {
	l.all = slices.DeleteFunc(l.all, func(x span) bool { return x.n == n })
	if l.unlocked != nil {
		close(l.unlocked)
		l.unlocked = nil
	}
}

// Last is the number of the last one.
func (l *Spans) Last() uint64 { return l.last }

// Overlap reports whether a span up to number n overlaps [off, end).
func (l *Spans) Overlap(off, end, n uint64) bool {
	return slices.ContainsFunc(l.all, func(x span) bool { return x.n <= n && x.off < end && off < x.end })
}

// Unlocked is closed at the next Unlock.
func (l *Spans) Unlocked() <-chan struct{} {
	if l.unlocked == nil {
		l.unlocked = make(chan struct{})
	}
	return l.unlocked
}
