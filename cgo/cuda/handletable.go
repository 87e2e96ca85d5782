//go:build cgo && linux

package cuda

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// handleTable lists the streams, events, modules, functions, graphs, executable graphs or
// pools that this package made and has not freed: libcuda crashes on a handle that is
// gone. Its zero value is empty. Its lock guards the table alone and is not held during
// calls of libcuda.
type handleTable struct {
	mu      sync.RWMutex
	entries map[uint64]*tableEntry

	// recent is some of entries. They are found without the lock, which is too slow for
	// launches, and are stored and removed under it.
	recent [8]atomic.Pointer[tableEntry]

	// oneAtATime says that CUDA does not take a handle from two threads at once: graphs and
	// executable graphs. It never changes.
	oneAtATime bool
}

// tableEntry is one handle.
type tableEntry struct {
	handle     uint64 // it never changes
	maker      *device
	module     *tableEntry // of a function; a call with the function counts as a user of it
	foreign    bool        // another process made it: an event of OpenEvent, a pool of ImportPool
	copyStream bool        // the maker's own, which only its Close frees
	call       sync.Mutex  // held during a call, for tables with oneAtATime

	// users counts the calls that use the handle. closedBit says that it is being
	// freed and no call may begin; the last call to end then frees it. freed says
	// that this has happened, or is about to.
	users atomic.Int64
	free  func() error // set before closedBit is
}

const freed = closedBit | releasedBit

func (m *handleTable) add(e *tableEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries == nil {
		m.entries = map[uint64]*tableEntry{}
	}
	m.entries[e.handle] = e
	m.slot(e.handle).Store(e)
}

// slot is where the entry of a handle is found without the lock. Handles are often
// multiples of a power of two.
func (m *handleTable) slot(handle uint64) *atomic.Pointer[tableEntry] {
	return &m.recent[handle*0x9e3779b97f4a7c15>>61]
}

// find returns nil for a handle that this package did not make.
func (m *handleTable) find(handle uint64) *tableEntry {
	if e := m.slot(handle).Load(); e != nil && e.handle == handle {
		return e
	}
	return m.lookUp(handle)
}

// lookUp is find by the whole table. It notes the entry as a recent one.
func (m *handleTable) lookUp(handle uint64) *tableEntry {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e := m.entries[handle]
	if e != nil {
		m.slot(handle).Store(e)
	}
	return e
}

// removeIf removes what gone is true of, and returns it.
func (m *handleTable) removeIf(gone func(*tableEntry) bool) (removed []*tableEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.entries, func(handle uint64, e *tableEntry) bool {
		if !gone(e) {
			return false
		}
		m.slot(handle).CompareAndSwap(e, nil)
		removed = append(removed, e)
		return true
	})
	return removed
}

// removeAllOf removes what a Device made that is closing: its context may go.
func (m *handleTable) removeAllOf(maker *device) []*tableEntry {
	return m.removeIf(func(e *tableEntry) bool { return e.maker == maker })
}

// acquire keeps a handle from being freed during a call of v, until release. It
// returns nil for a handle that this package did not make, and an error where the
// handle may not reach libcuda.
func (m *handleTable) acquire(call string, handle uint64, v *device) (*tableEntry, error) {
	e := m.find(handle)
	if e != nil && e.module != nil {
		e = e.module
	}
	if e == nil {
		return nil, nil //nolint:nilnil // a handle of another library is no error
	}
	// The maker must stay open for the time of the call: its Close would end the
	// handle. A call of the maker's own holds it open already.
	if e.maker != v && e.maker.beginEvenLost(call) != nil {
		return nil, refuse(call, driver.ErrInvalid, "%#x went with the device that made it", handle)
	}
	switch {
	case e.users.Add(1)&closedBit != 0:
		e.release(v)
		return nil, refuse(call, driver.ErrInvalid, "%#x is being freed", handle)
	case e.maker != v && !e.maker.validFor(v):
		e.release(v)
		return nil, refuse(call, driver.ErrInvalid, "%#x was made before the context of cuda:%d was reset", handle, e.maker.n)
	}
	return e, nil
}

// release ends what acquire began. The last call that uses a handle which is
// being freed frees it.
func (e *tableEntry) release(v *device) {
	if e == nil {
		return
	}
	if e.users.Add(-1) == closedBit && e.users.CompareAndSwap(closedBit, freed) {
		_ = e.free() // remove has returned, so there is no one to tell
	}
	if e.maker != v {
		e.maker.end()
	}
}

// remove takes a handle off the table and frees it with free. It does not wait for
// calls that use the handle: the last of them then frees it. Where free fails at
// once the handle stays.
func (m *handleTable) remove(call string, handle uint64, v *device, free func(*tableEntry) error) error {
	// First off the table: libcuda may return the same number from another
	// thread's create before free has come back.
	e, err := m.unlist(call, handle, v)
	if e == nil {
		return err
	}
	if e.maker != v {
		if e.maker.beginEvenLost(call) != nil {
			return refuse(call, driver.ErrInvalid, "%#x went with the device that made it", handle)
		}
		defer e.maker.end()
	}
	e.free = func() error { return free(e) }
	// Without users it is freed here, else the last of them does it.
	for !e.users.CompareAndSwap(0, freed) {
		if n := e.users.Load(); n != 0 && e.users.CompareAndSwap(n, n|closedBit) {
			return nil
		}
	}
	if err := e.free(); err != nil {
		e.users.Add(-freed)
		m.add(e)
		return err
	}
	return nil
}

// unlist takes a handle off the table. It returns nil without an error where a
// reset took v's handle along and the number is another Device's by now.
func (m *handleTable) unlist(call string, handle uint64, v *device) (*tableEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[handle]
	switch {
	case e == nil || e.copyStream:
		return nil, refuse(call, driver.ErrInvalid, "no handle %#x", handle)
	case e.maker != v && v.reset.Load():
		return nil, nil //nolint:nilnil // there is nothing left to free
	}
	delete(m.entries, handle)
	m.slot(handle).CompareAndSwap(e, nil)
	return e, nil
}
