// Package grants is which devices may access the memory of one reservation. It takes no lock: its
// caller has one.
package grants

import (
	"slices"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Device is a device as the driver knows it.
type Device interface {
	comparable
	Ordinal() int
}

// Grant is the access of one device.
type Grant[D Device, H any] struct {
	Dev    D
	Holder H // what the grant was given to: a program may have opened a device several times
	Access driver.Access
	cause  error // why it is in doubt
}

// Table is the grants of one reservation, and what is refused while they change or are in doubt.
// Its zero value has none.
type Table[D Device, H any] struct {
	all     []Grant[D, H]  // the owner first; replaced, never changed
	driver  []driver.Grant // the same, as the driver wants it
	changes []*Change[D, H]
	doubts  []Grant[D, H] // AccessNone for each device in doubt
	refuses atomic.Bool

	Most driver.Access // no device is granted more; immutable
}

// Change is a change of access. Until it ends, a device is allowed only what it may do both before
// and after.
type Change[D Device, H any] struct {
	Before  []Grant[D, H] // what its devices had
	Narrows bool          // one of them loses access
	after   []Grant[D, H]
}

// Driver is the grants as the driver wants them, the owner first.
func (t *Table[D, H]) Driver() []driver.Grant { return t.driver }

// Peers are the grants but for the owner's.
func (t *Table[D, H]) Peers() []Grant[D, H] { return t.all[1:] }

// Access is what the device was granted.
func (t *Table[D, H]) Access(d D) driver.Access { return t.now(Grant[D, H]{Dev: d}).Access }

// now is what the device of g was granted.
func (t *Table[D, H]) now(g Grant[D, H]) Grant[D, H] {
	if i := index(t.all, g.Dev); i >= 0 {
		return t.all[i]
	}
	g.Access = driver.AccessNone
	return g
}

// Devices are those whose work may use the memory.
func (t *Table[D, H]) Devices() (devs []D) {
	for _, g := range t.doubts {
		devs = append(devs, g.Dev)
	}
	for _, g := range t.all {
		if index(t.doubts, g.Dev) < 0 {
			devs = append(devs, g.Dev)
		}
	}
	return devs
}

// Set enters grants. The first of all is the owner's and stays.
func (t *Table[D, H]) Set(to []Grant[D, H]) {
	t.all = slices.Clone(t.all)
	for _, g := range to {
		i := index(t.all, g.Dev)
		switch {
		case i < 0 && g.Access != driver.AccessNone:
			t.all = append(t.all, g)
		case i > 0 && g.Access == driver.AccessNone:
			t.all = slices.Delete(t.all, i, i+1)
		case i >= 0:
			t.all[i].Access = g.Access
		}
	}
	t.driver = nil
	for _, g := range t.all {
		t.driver = append(t.driver, g.toDriver())
	}
}

// Calls is what to tell the driver to set access, and what to tell it to undo that. If unsure, what the
// driver has is not known, so all access is set again.
func (t *Table[D, H]) Calls(to []Grant[D, H], unsure bool) (after, before []driver.Grant) {
	if unsure {
		for _, g := range t.doubts {
			after = append(after, g.toDriver())
		}
		after = append(after, t.driver...)
		before = slices.Clone(after)
	}
	for _, g := range to {
		if now := t.now(g); now.Access != g.Access || unsure {
			after = append(after, g.toDriver()) // the last one for a device counts
			before = append(before, now.toDriver())
		}
	}
	return after, before
}

// Begin begins a change.
func (t *Table[D, H]) Begin(to []Grant[D, H]) *Change[D, H] {
	c := &Change[D, H]{after: to}
	for _, g := range to {
		before := t.now(g)
		c.Before = append(c.Before, before)
		c.Narrows = c.Narrows || g.Access < before.Access
	}
	t.changes = append(t.changes, c)
	t.setRefuses()
	return c
}

// End ends a change, whatever has become of it.
func (t *Table[D, H]) End(c *Change[D, H]) {
	t.changes = slices.DeleteFunc(t.changes, func(e *Change[D, H]) bool { return e == c })
	t.setRefuses()
}

// Doubt notes that the driver may give the devices other access than their grants, and why.
func (t *Table[D, H]) Doubt(devs []Grant[D, H], cause error) {
	for _, g := range devs {
		if index(t.doubts, g.Dev) < 0 {
			t.doubts = append(t.doubts, Grant[D, H]{g.Dev, g.Holder, driver.AccessNone, cause})
		}
	}
	t.setRefuses()
}

// Agree notes that the driver gives all devices the access of their grants.
func (t *Table[D, H]) Agree() {
	t.doubts = nil
	t.setRefuses()
}

// InDoubt reports whether the access of a device is in doubt.
func (t *Table[D, H]) InDoubt() bool { return len(t.doubts) > 0 }

// Allowed is the access that new work of the device may have. A device in doubt has none, and inDoubt
// is why.
func (t *Table[D, H]) Allowed(d D) (a driver.Access, inDoubt error) {
	if i := index(t.doubts, d); i >= 0 {
		return driver.AccessNone, t.doubts[i].cause
	}
	a = t.Access(d)
	for _, c := range t.changes {
		if i := index(c.after, d); i >= 0 {
			a = min(a, c.Before[i].Access, c.after[i].Access)
		}
	}
	return a, nil
}

// Refuses reports whether a device may be allowed less than it was granted. It needs no lock.
func (t *Table[D, H]) Refuses() bool { return t.refuses.Load() }

func (t *Table[D, H]) setRefuses() { t.refuses.Store(len(t.changes)+len(t.doubts) > 0) }

func index[D Device, H any](all []Grant[D, H], d D) int {
	return slices.IndexFunc(all, func(g Grant[D, H]) bool { return g.Dev == d })
}

func (g Grant[D, H]) toDriver() driver.Grant {
	return driver.Grant{To: driver.Location{Kind: driver.LocationDevice, ID: g.Dev.Ordinal()}, Access: g.Access}
}
