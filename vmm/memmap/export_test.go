package memmap

import "time"

// WatchForTest counts a page that watches.
func (m *Map) WatchForTest() (release func()) {
	m.watch()
	return m.unwatch
}

// SameRange reports whether a page has no need to be told of b when it has a.
func SameRange(a, b *Range) bool { return a.equal(b) }

// Due is when the next snapshot may be taken.
func (m *Map) Due() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.due
}
