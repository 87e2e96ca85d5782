package hostengine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/engine"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Member is one member's end of a World. It reports calls that engine.Engine does not allow.
type Member struct {
	// Immutable.
	w        *World
	rank     int
	streams  driver.Device
	launcher driver.Launcher
	view     driver.HostViewer
	module   driver.Module
	kernel   driver.Function

	calling atomic.Bool // a call other than Abort is made
	aborted chan struct{}

	// Guarded by World.mu.
	ended         bool // aborted is closed
	closing       bool
	freed         bool
	runs          map[uint64]*run // queued and not done, by number
	lastRun       uint64
	last          chan struct{} // closed when the run that was queued last is done
	waits         []*transfer   // of the run that waits for other members
	collectives   uint64        // joined so far
	sent          map[int]uint64
	received      map[int]uint64
	registrations map[uint64]registration
	lastHandle    uint64
	windows       int     // registered so far
	window        *window // for which RegisterWindow waits
}

var _ engine.Engine = (*Member)(nil)

// run is the calls of one Run.
type run struct {
	number uint64
	calls  []nccl.Call
	after  <-chan struct{} // closed when the run before is done
	done   chan struct{}
}

var errEnded = fmt.Errorf("%w: this member was aborted", nccl.ErrFailed)

// load loads the kernel that stands for all calls. Its argument is the run's number.
func (m *Member) load() (err error) {
	const name = "collective"
	m.module, _, err = m.launcher.LoadModule(driver.Code{Host: map[string]driver.HostKernel{
		name: {Params: []driver.Param{{Offset: 0, Size: 8}}, Run: m.runKernel},
	}})
	if err != nil {
		return err
	}
	if m.kernel, err = m.launcher.Function(m.module, name); err != nil {
		return errors.Join(err, m.launcher.UnloadModule(m.module))
	}
	return nil
}

// begin begins a call other than Abort, and reports one that is not allowed now.
func (m *Member) begin(name string) {
	if !m.calling.CompareAndSwap(false, true) {
		m.w.opts.Report("rank %d: %s while another call is made", m.rank, name)
	}
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.freed {
		m.w.opts.Report("rank %d: %s after Free", m.rank, name)
	}
	if m.ended || m.w.err != nil {
		return
	}
	if m.closing && name != "Err" && name != "Free" {
		m.w.opts.Report("rank %d: %s after Close", m.rank, name)
	}
}

func (m *Member) end() { m.calling.Store(false) }

// Run queues the calls as one kernel. Collective operations of no elements are discarded, as
// NCCL does. On a stream that is being captured it returns vmm.ErrNotSupported.
func (m *Member) Run(st driver.Stream, memory []driver.Span, calls []nccl.Call) error {
	m.begin("Run")
	defer m.end()
	r := &run{done: make(chan struct{})}
	for _, c := range calls {
		if err := m.check(c, memory); err != nil {
			return err
		}
		if c.Count > 0 || !collective(c.Operation) {
			r.calls = append(r.calls, c)
		}
	}
	m.checkRegistrations(memory)
	if capturing, err := m.streams.Capturing(st); err != nil || capturing {
		if err == nil {
			err = fmt.Errorf("%w: the stream is being captured", vmm.ErrNotSupported)
		}
		return err
	}
	m.w.mu.Lock()
	if m.ended || m.w.err != nil {
		defer m.w.mu.Unlock()
		return m.errLocked()
	}
	before := m.last
	m.lastRun++
	r.number, r.after, m.last = m.lastRun, before, r.done
	m.runs[r.number] = r
	m.w.mu.Unlock()
	l := driver.Launch{Args: binary.LittleEndian.AppendUint64(nil, r.number), Memory: memory}
	err := m.launcher.Launch(m.kernel, &l, st)
	if err == nil {
		return nil
	}
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	delete(m.runs, r.number)
	m.last = before
	return err
}

// errLocked returns why the member can make no more calls; nil if it can. Requires World.mu.
func (m *Member) errLocked() error {
	if m.ended {
		return errEnded
	}
	return m.w.err
}

// check checks a call, and that memory has all that it uses.
func (m *Member) check(c nccl.Call, memory []driver.Span) error {
	size := uint64(len(m.w.members))
	if c.Operation > nccl.Recv || c.Kind.Size() == 0 || c.Reduction > nccl.Mean || c.Peer < 0 || uint64(c.Peer) >= size {
		return fmt.Errorf("%w: %s", vmm.ErrInvalid, callText(c))
	}
	if c.Count > 1<<56/size {
		return fmt.Errorf("%w: %s: too many elements", vmm.ErrInvalid, callText(c))
	}
	src, dst := m.extents(c)
	if !covered(src, memory) || !covered(dst, memory) {
		return fmt.Errorf("%w: %s: from %v of %d bytes to %v of %d: not all of it is in %v",
			vmm.ErrInvalid, callText(c), src.Addr, src.Size, dst.Addr, dst.Size, memory)
	}
	return nil
}

// extents returns the memory that a call reads and the memory that it writes.
func (m *Member) extents(c nccl.Call) (src, dst driver.Span) {
	n, size := c.Count*c.Kind.Size(), uint64(len(m.w.members))
	src = driver.Span{Addr: driver.Ptr(c.Src), Size: n, Access: driver.AccessRead}
	dst = driver.Span{Addr: driver.Ptr(c.Dst), Size: n, Access: driver.AccessReadWrite}
	isRoot := c.Peer == m.rank
	switch {
	case c.Operation == nccl.AllGather:
		dst.Size *= size
	case c.Operation == nccl.ReduceScatter:
		src.Size *= size
	case c.Operation == nccl.Reduce && !isRoot, c.Operation == nccl.Send, c.Operation == nccl.Broadcast && isRoot && c.Src == c.Dst:
		dst.Size = 0
	case c.Operation == nccl.Broadcast && !isRoot, c.Operation == nccl.Recv:
		src.Size = 0
	}
	return src, dst
}

// covered reports whether one of the spans has all of s.
func covered(s driver.Span, spans []driver.Span) bool {
	for _, x := range spans {
		if s.Addr >= x.Addr && s.Size <= x.Size && uint64(s.Addr-x.Addr) <= x.Size-s.Size && s.Access <= x.Access {
			return true
		}
	}
	return s.Size == 0
}

// runKernel is the kernel of a run.
func (m *Member) runKernel(l *driver.Launch) error {
	w := m.w
	w.mu.Lock()
	r := m.runs[binary.LittleEndian.Uint64(l.Args)]
	w.mu.Unlock()
	if m.wait(r.after) {
		m.transfer(r)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(m.runs, r.number)
	close(r.done)
	w.changed.Broadcast()
	return nil
}

// wait waits until done is closed. It is false if the member was aborted first.
func (m *Member) wait(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-m.aborted:
		return false
	}
}

// transfer joins the transfers of a run, and returns when they are done, or when the member was
// aborted.
func (m *Member) transfer(r *run) {
	w := m.w
	sides := make([]side, len(r.calls))
	var err error
	for i, c := range r.calls {
		sides[i] = side{rank: m.rank, call: c}
		src, dst := m.extents(c)
		for _, x := range []struct {
			span driver.Span
			to   *[]byte
		}{{src, &sides[i].src}, {dst, &sides[i].dst}} {
			if x.span.Size == 0 || err != nil {
				continue
			}
			*x.to, err = m.view.HostBytes(x.span.Addr, x.span.Size)
		}
	}
	w.mu.Lock()
	if err != nil {
		w.failLocked("rank %d: %w", m.rank, err)
	}
	var all, ready []*transfer
	for _, s := range sides {
		if m.ended || w.err != nil {
			break
		}
		s.windows = m.windowsLocked(s.call)
		t := w.joinLocked(m, s)
		if all = append(all, t); t.missing == 0 && w.err == nil {
			t.running = true
			t.remove()
			ready = append(ready, t)
		}
	}
	if m.waits = all; w.err == nil {
		w.checkCycleLocked(m)
	}
	w.changed.Broadcast()
	failed := w.err != nil
	w.mu.Unlock()
	for _, t := range ready {
		m.runTransfer(t)
	}
	for _, t := range all {
		if !m.wait(t.done) {
			break
		}
	}
	if failed { // a stream that went on would look as if the calls had been made
		<-m.aborted
	}
	m.withdraw(all)
}

// runTransfer does the work of a transfer that has all its sides.
func (m *Member) runTransfer(t *transfer) {
	finished := false
	defer func() {
		if !finished { // it panics: the memory of a side cannot be used, and this device is lost
			m.w.mu.Lock()
			m.w.failLocked("rank %d: fault in %v", m.rank, t.text(m.rank))
			m.w.mu.Unlock()
		}
		close(t.done)
	}()
	t.run()
	finished = true
}

// withdraw takes the member out of transfers that do not run. It waits for those that do, since
// they use its memory.
func (m *Member) withdraw(all []*transfer) {
	m.w.mu.Lock()
	m.waits = nil
	var running []*transfer
	for _, t := range all {
		if t.running {
			running = append(running, t)
			continue
		}
		for i, s := range t.sides {
			if s != nil && s.rank == m.rank {
				t.sides[i] = nil
				t.missing++
			}
		}
	}
	m.w.mu.Unlock()
	for _, t := range running {
		<-t.done
	}
}

// Err is nil while the group can go on.
func (m *Member) Err() error {
	m.begin("Err")
	defer m.end()
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if err := m.errLocked(); err != nil {
		return err
	}
	return m.w.goneLocked(m)
}

// untilLocked waits until done is true, or the group cannot go on. Requires World.mu.
func (m *Member) untilLocked(done func() bool) error {
	for {
		if err := m.errLocked(); err != nil {
			return err
		}
		if done() {
			return nil
		}
		if err := m.w.goneLocked(m); err != nil {
			return err
		}
		m.w.changed.Wait()
	}
}

// allLocked reports whether all members have joined and f is true of each. Requires mu.
func (w *World) allLocked(f func(*Member) bool) bool {
	for _, m := range w.members {
		if m == nil || !f(m) {
			return false
		}
	}
	return true
}

// Close waits until all members have called it and this one's calls have run.
func (m *Member) Close() error {
	m.begin("Close")
	defer m.end()
	w := m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	m.closing = true
	w.changed.Broadcast()
	return m.untilLocked(func() bool {
		return w.allLocked(func(x *Member) bool { return x.closing }) && len(m.runs) == 0
	})
}

// Abort ends this member: its kernels end, those that do the work of others once that is done. It
// does not wait for them. Twice is fine.
func (m *Member) Abort() error {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.ended || m.freed {
		return nil
	}
	m.ended = true
	close(m.aborted)
	if m.w.gone < 0 {
		m.w.gone = m.rank
	}
	m.w.changed.Broadcast()
	return nil
}

// Free unloads the kernel. It reports registrations that are left, unless Abort has undone
// them.
func (m *Member) Free() error {
	m.begin("Free")
	defer m.end()
	w := m.w
	w.mu.Lock()
	for _, r := range m.registrations {
		if m.ended {
			break
		}
		w.opts.Report("rank %d: at Free %d bytes at %v are registered", m.rank, r.n, r.p)
	}
	if !m.ended && w.err == nil && !w.allLocked(func(x *Member) bool { return x.closing }) {
		w.opts.Report("rank %d: Free without Abort, or before Close was done", m.rank)
	}
	m.registrations, m.freed = nil, true
	w.mu.Unlock()
	return m.launcher.UnloadModule(m.module)
}

// Freed reports whether Free was called.
func (m *Member) Freed() bool {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return m.freed
}

// Name is the engine's name.
func (m *Member) Name() string { return "host" }
