package hostengine

import (
	"fmt"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// registration is memory that is registered.
type registration struct {
	p      vmm.Ptr
	n      uint64
	window int // its number, from 1 on; 0: none
}

// window is a window that the members register, each its own memory.
type window struct {
	n       uint64
	rank    int // the member that came first
	missing int
}

// Register registers memory, which must be mapped and not registered.
func (m *Member) Register(p vmm.Ptr, n uint64) (handle uint64, err error) {
	m.begin("Register")
	defer m.end()
	return m.register(p, n, 0)
}

func (m *Member) register(p vmm.Ptr, n uint64, window int) (handle uint64, err error) {
	if n == 0 {
		return 0, fmt.Errorf("%w: no memory", vmm.ErrInvalid)
	}
	if _, err := m.view.HostBytes(p, n); err != nil {
		return 0, err
	}
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if err := m.errLocked(); err != nil {
		return 0, err
	}
	for _, r := range m.registrations {
		if (r.window > 0) == (window > 0) && r.overlaps(p, n) {
			m.w.opts.Report("rank %d: %d bytes at %v are registered, of which %d bytes at %v are already", m.rank, n, p, r.n, r.p)
			return 0, fmt.Errorf("%w: registered already", vmm.ErrInvalid)
		}
	}
	m.lastHandle++
	m.registrations[m.lastHandle] = registration{p, n, window}
	return m.lastHandle, nil
}

func (r registration) overlaps(p vmm.Ptr, n uint64) bool {
	return p < r.p+vmm.Ptr(r.n) && r.p < p+vmm.Ptr(n)
}

// Deregister undoes Register. It works after Abort, too.
func (m *Member) Deregister(handle uint64) error { return m.deregister("Deregister", handle, false) }

// DeregisterWindow undoes RegisterWindow.
func (m *Member) DeregisterWindow(handle uint64) error {
	return m.deregister("DeregisterWindow", handle, true)
}

func (m *Member) deregister(name string, handle uint64, window bool) error {
	m.begin(name)
	defer m.end()
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if r, ok := m.registrations[handle]; !ok || r.window > 0 != window {
		m.w.opts.Report("rank %d: %s of %d, which is not registered", m.rank, name, handle)
		return fmt.Errorf("%w: %d is not registered", vmm.ErrInvalid, handle)
	}
	delete(m.registrations, handle)
	return nil
}

// checkRegistrations reports memory that a call uses and that was unmapped while registered.
func (m *Member) checkRegistrations(memory []driver.Span) {
	m.w.mu.Lock()
	var used []registration
	for _, r := range m.registrations {
		for _, s := range memory {
			if s.Size > 0 && r.overlaps(s.Addr, s.Size) {
				used = append(used, r)
				break
			}
		}
	}
	m.w.mu.Unlock()
	for _, r := range used {
		if _, err := m.view.HostBytes(r.p, r.n); err != nil {
			m.w.opts.Report("rank %d: a call uses memory that was unmapped while it was registered, %d bytes at %v: %v", m.rank, r.n, r.p, err)
		}
	}
}

// RegisterWindow registers a window, and waits until all members have registered theirs.
func (m *Member) RegisterWindow(p vmm.Ptr, n uint64) (handle uint64, err error) {
	m.begin("RegisterWindow")
	defer m.end()
	w := m.w
	w.mu.Lock()
	number := m.windows + 1
	w.mu.Unlock()
	if handle, err = m.register(p, n, number); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m.windows = number
	if len(w.windows) < number {
		w.windows = append(w.windows, &window{n: n, rank: m.rank, missing: len(w.members)})
	}
	x := w.windows[number-1]
	if x.n != n {
		w.failLocked("rank %d registers a window of %d bytes, rank %d one of %d", x.rank, x.n, m.rank, n)
		return 0, w.err
	}
	m.window = x
	defer func() { m.window = nil }()
	x.missing--
	w.changed.Broadcast()
	return handle, m.untilLocked(func() bool { return x.missing == 0 })
}

// windowsLocked returns the numbers of the windows that src and dst of a call are in; 0 for none.
// Requires World.mu.
func (m *Member) windowsLocked(c nccl.Call) (numbers [2]int) {
	src, dst := m.extents(c)
	for _, r := range m.registrations {
		for i, s := range []driver.Span{src, dst} {
			if r.window > 0 && s.Size > 0 && s.Addr >= r.p && s.Addr+driver.Ptr(s.Size) <= r.p+vmm.Ptr(r.n) {
				numbers[i] = r.window
			}
		}
	}
	return numbers
}
