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

// NextForTest is what a page that has the snapshot seq is told.
func (m *Map) NextForTest(seq uint64) (kind string, data []byte, now uint64, due time.Time) {
	return m.next(seq)
}
