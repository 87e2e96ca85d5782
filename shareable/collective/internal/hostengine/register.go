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
	n        uint64
	rank     int // the member that came first
	missing  int
	complete bool
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

// RegisterWindow registers a window, which is done once all members have registered theirs.
func (m *Member) RegisterWindow(p vmm.Ptr, n uint64, handle *uint64) error {
	m.begin("RegisterWindow")
	defer m.end()
	registered, err := m.register(p, n, m.nextWindow())
	if err != nil {
		return err
	}
	*handle = registered
	w := m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	m.windows++
	if len(w.windows) < m.windows {
		w.windows = append(w.windows, &window{n: n, rank: m.rank, missing: len(w.members)})
	}
	m.window = w.windows[m.windows-1]
	if m.window.n != n {
		w.failLocked("rank %d registers a window of %d bytes, rank %d one of %d", m.window.rank, m.window.n, m.rank, n)
		return w.err
	}
	m.window.missing--
	m.window.complete = m.window.missing == 0
	return m.windowProgressLocked()
}

func (m *Member) nextWindow() int {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return m.windows + 1
}

// windowProgressLocked is nil if no registration of a window is under way. Requires World.mu.
func (m *Member) windowProgressLocked() error {
	if m.window != nil && !m.window.complete {
		return nccl.ErrInProgress
	}
	m.window = nil
	return nil
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
