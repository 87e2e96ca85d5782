//go:build cgo && linux

package cuda

import (
	"maps"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// made is the handles of one kind that exist. Its zero value is empty.
type made struct {
	mu  sync.RWMutex
	all map[uint64]*Device // and who made it
}

func (m *made) add(x uint64, by *Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[uint64]*Device{}
	}
	m.all[x] = by
}

// forget drops what a device made that is closing: its context may go.
func (m *made) forget(by *Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.all, func(_ uint64, d *Device) bool { return d == by })
}

// has refuses events that are not there.
func (m *made) has(call string, events ...driver.Event) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, e := range events {
		if _, ok := m.all[uint64(e)]; !ok {
			return rule(call, driver.ErrInvalid, "no event %#x", uint64(e))
		}
	}
	return nil
}

// remove frees x if it is there, with free, and forgets it.
func (m *made) remove(call string, x uint64, free func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.all[x]; !ok {
		return rule(call, driver.ErrInvalid, "no handle %#x", x)
	}
	if err := free(); err != nil {
		return err
	}
	delete(m.all, x)
	return nil
}
