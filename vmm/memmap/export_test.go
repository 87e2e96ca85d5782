package memmap

import "time"

// WatchForTest counts a page that watches.
func (m *Map) WatchForTest() (release func()) {
	m.watch()
	return m.unwatch
}

// Due is when the next snapshot may be taken.
func (m *Map) Due() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.due
}
