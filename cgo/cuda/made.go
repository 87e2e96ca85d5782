//go:build cgo && linux

package cuda

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// made is the handles of one kind that exist, streams or events. Its zero value
// is empty. Its lock guards the table alone and is not held while libcuda works.
type made struct {
	mu  sync.RWMutex
	all map[uint64]*thing
}

// thing is a stream or an event of ours.
type thing struct {
	by  *Device // who made it
	own bool    // by's own stream, which nobody frees

	// users counts the calls that have it in hand; closedBit says that it is
	// being freed and no more may begin. The last one out frees it.
	users atomic.Int64
	free  func() error // set before closedBit is
}

func (m *made) add(x uint64, t *thing) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[uint64]*thing{}
	}
	m.all[x] = t
}

// forget drops what a device made that is closing: its context may go.
func (m *made) forget(by *Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.all, func(_ uint64, t *thing) bool { return t.by == by })
}

// use is x in the hand of a call of v, until done; nil if x is none of ours. It
// is an error where x may not reach libcuda, which crashes on what is gone.
func (m *made) use(call string, x uint64, v *Device) (*thing, error) {
	m.mu.RLock()
	t := m.all[x]
	m.mu.RUnlock()
	if t == nil {
		return nil, nil //nolint:nilnil // no thing of ours is no error
	}
	if t.by != v && t.by.stay(call) != nil {
		return nil, rule(call, driver.ErrInvalid, "%#x went with the device that made it", x)
	}
	switch {
	case t.users.Add(1)&closedBit != 0:
		t.done(v)
		return nil, rule(call, driver.ErrInvalid, "%#x is being freed", x)
	case t.by != v && !t.by.sees(v):
		t.done(v)
		return nil, rule(call, driver.ErrInvalid, "%#x was made before the context of cuda:%d was reset", x, t.by.n)
	}
	return t, nil
}

// done ends use. The last one out of what is being freed frees it.
func (t *thing) done(v *Device) {
	if t == nil {
		return
	}
	if t.users.CompareAndSwap(closedBit|1, freed) {
		_ = t.free() // nobody is left to tell
	} else {
		t.users.Add(-1)
	}
	if t.by != v {
		t.by.exit()
	}
}

// freed is users of what has been freed, or is about to be by the one who set it.
const freed = closedBit | closedBit>>1

// remove forgets x and frees it with free. It does not wait for the calls that
// have x in hand: the last of them frees it then. What cannot be freed is not
// forgotten.
func (m *made) remove(call string, x uint64, v *Device, free func(by *Device) error) error {
	t, err := m.take(call, x, v)
	if t == nil {
		return err
	}
	if t.by != v {
		if t.by.stay(call) != nil {
			return rule(call, driver.ErrInvalid, "%#x went with the device that made it", x)
		}
		defer t.by.exit()
	}
	t.free = func() error { return free(t.by) }
	for !t.users.CompareAndSwap(0, freed) {
		if n := t.users.Load(); n != 0 && t.users.CompareAndSwap(n, n|closedBit) {
			return nil
		}
	}
	if err := t.free(); err != nil {
		m.add(x, &thing{by: t.by})
		return err
	}
	return nil
}

// take takes x off the table: libcuda may give its number again before it has
// come back from freeing it. It is nil without an error where v's x went with a
// reset and the number is another's by now.
func (m *made) take(call string, x uint64, v *Device) (*thing, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.all[x]
	switch {
	case t == nil || t.own:
		return nil, rule(call, driver.ErrInvalid, "no handle %#x", x)
	case t.by != v && v.reset.Load() && !v.sees(t.by):
		return nil, nil //nolint:nilnil // that is so
	}
	delete(m.all, x)
	return t, nil
}
