//go:build linux

package host

import (
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Freed implements driver.FreeReporter. It frees memory that it finds free.
func (d *Driver) Freed(h driver.Handle) (bool, error) {
	d.memMu.Lock()
	defer d.unlockAndClose()
	if d.handles[h] != nil {
		return false, nil
	}
	i := slices.IndexFunc(d.orphans, func(m *memory) bool { return m.first == h })
	if i < 0 {
		return true, nil
	}
	m := d.orphans[i]
	if m.shared() {
		return false, nil
	}
	d.orphans = slices.Delete(d.orphans, i, i+1)
	d.freeMemory(m)
	return true, nil
}
