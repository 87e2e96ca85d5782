package vmm

import (
	"fmt"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
)

// Module is code that is loaded on a device: kernels, found by their names. Package kernel is built on
// it: it makes modules of CUDA source and Go functions, and launches them with Go values. Safe for
// concurrent use. The caller must Close it.
type Module struct {
	dev    *Device
	on     *openDevice
	raw    driver.Launcher
	handle driver.Module

	mu     lock.RWMutex // Close has it to its end; other calls, launches apart, try to share it
	closed atomic.Bool  // launches look at it with their stream's lock held; see Close
}

// Function is a kernel of a Module, valid until that is closed. Safe for concurrent use.
type Function struct {
	m      *Module
	name   string
	op     string // for errors of Launch
	handle driver.Function
}

// LoadModule loads code on the device. log is the compiler's output for PTX, even if it fails. LoadModule
// returns ErrNotSupported for PTX or a binary that this device or driver cannot run, and ErrInvalid for
// code that cannot be parsed. The host device needs Code.Host, else LoadModule returns ErrNotSupported.
// The caller must Close the Module.
func (d *Device) LoadModule(c Code) (m *Module, log string, err error) {
	m = &Module{dev: d}
	m.mu.At(lock.Module, 0)
	if err = d.track(m, "module"); err != nil { // first, so that the device does not close meanwhile
		return nil, "", d.wrap("load module", 0, 0, err)
	}
	if log, err = m.load(c); err != nil {
		d.untrack(m)
		return nil, log, d.wrap("load module", 0, 0, err)
	}
	return m, log, nil
}

func (m *Module) load(c Code) (log string, err error) {
	if m.on, err = m.dev.ensureOpen(); err != nil {
		return "", err
	}
	var ok bool
	if m.raw, ok = order.As[driver.Launcher](m.on.Device); !ok {
		return "", fmt.Errorf("%w: kernels", ErrNotSupported)
	}
	m.handle, log, err = m.raw.LoadModule(c)
	return log, err
}

// Device is the device that the code is loaded on.
func (m *Module) Device() *Device { return nonnil.Of(m).dev }

// with runs f with the code kept loaded.
func (m *Module) with(f func() error) error {
	if m == nil || m.dev == nil {
		return fmt.Errorf("%w: no module", ErrInvalid)
	}
	if !m.mu.TryRLock() {
		return errModuleClosed // a Close has begun
	}
	defer m.mu.RUnlock()
	if m.closed.Load() {
		return errModuleClosed
	}
	return f()
}

var errModuleClosed = fmt.Errorf("%w: module", ErrClosed)

// Function finds a kernel by its name, the mangled one in C++ code that is not extern "C". If there is
// none, it returns ErrInvalid.
func (m *Module) Function(name string) (f *Function, err error) {
	f = &Function{m: m, name: name, op: "launch " + name}
	err = m.with(func() (err error) {
		f.handle, err = m.raw.Function(m.handle, name)
		return err
	})
	if err != nil {
		return nil, m.Device().wrap("find kernel "+name, 0, 0, err)
	}
	return f, nil
}

// Close waits for the work of the device's context, which may run the module's kernels, and
// unloads the code. While a stream of the device is being captured it returns ErrCapturing
// and changes nothing. Graphs with kernels of the module cannot be launched any more. Twice
// is fine, and so is a nil Module. After an error it can be called again.
func (m *Module) Close() (err error) {
	if m == nil || m.dev == nil {
		return nil
	}
	defer func() { err = m.dev.wrap("close module", 0, 0, err) }()
	// Asked first: launches and other calls go on if it cannot be closed.
	if !m.closed.Load() {
		if err := m.dev.state.notCapturing(); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed.Swap(true) {
		return nil
	}
	// A launch holds its stream's lock. Once each stream was locked, all launches that did
	// not see that the module is closed have been queued, and the wait is for them, too.
	m.dev.state.lockEachStream()
	err = waitDevices(m.dev.state, []*deviceState{m.dev.state})
	if err == nil || lost(err) {
		if failed := m.raw.UnloadModule(m.handle); !lost(failed) {
			err = errtext.Join(err, "and unloading it", failed)
		}
	}
	if err != nil && !lost(err) {
		m.closed.Store(false)
		return err
	}
	m.dev.untrack(m)
	return err
}

// lockEachStream locks and unlocks the streams, so that what their users have begun ends.
func (s *deviceState) lockEachStream() {
	for _, x := range s.gate.Streams() {
		if st, ok := x.Owner.(*Stream); ok {
			st.mu.Lock()
			st.mu.Unlock() //nolint:staticcheck // there is nothing to do in between
		}
	}
}

// Name is the kernel's name.
func (f *Function) Name() string { return nonnil.Of(f).name }

// Module is the module that the kernel is in.
func (f *Function) Module() *Module { return nonnil.Of(f).m }

// Params lists the parameters in order. It returns ErrNotSupported with drivers of CUDA before 12.4,
// which cannot tell.
func (f *Function) Params() (p []Param, err error) {
	err = f.with("read parameters", func(raw driver.Launcher) (err error) { p, err = raw.Params(f.handle); return err })
	return p, err
}

// Info describes the kernel as it was compiled.
func (f *Function) Info() (i FunctionInfo, err error) {
	err = f.with("describe", func(raw driver.Launcher) (err error) { i, err = raw.FunctionInfo(f.handle); return err })
	return i, err
}

// SetMaxDynamicShared allows launches with up to n bytes of dynamic shared memory. Without it the limit
// is 48 KiB. Beyond the device's maximum it returns ErrInvalid.
func (f *Function) SetMaxDynamicShared(n uint32) error {
	return f.with("allow shared memory for", func(raw driver.Launcher) error { return raw.SetMaxDynamicShared(f.handle, n) })
}

// Occupancy is how many blocks of that many threads, each with shared bytes of dynamic
// shared memory, run at once on one multiprocessor.
func (f *Function) Occupancy(threads, shared uint32) (blocks int, err error) {
	err = f.with("compute occupancy of", func(raw driver.Launcher) (err error) {
		blocks, err = raw.Occupancy(f.handle, threads, shared)
		return err
	})
	return blocks, err
}

// SuggestBlock is the number of threads in a block with which the kernel occupies the
// device best, and how many such blocks fill the device.
func (f *Function) SuggestBlock(shared uint32) (threads, blocks uint32, err error) {
	err = f.with("suggest a block for", func(raw driver.Launcher) (err error) {
		threads, blocks, err = raw.SuggestBlock(f.handle, shared)
		return err
	})
	return threads, blocks, err
}

// with makes a call of the driver with the code kept loaded.
func (f *Function) with(op string, call func(driver.Launcher) error) error {
	if f == nil || f.m == nil {
		return (*Device)(nil).wrap(op, 0, 0, fmt.Errorf("%w: no function", ErrInvalid))
	}
	return f.m.dev.wrap(op+" "+f.name, 0, 0, f.m.with(func() error { return call(f.m.raw) }))
}

// MemoryArg is memory as an argument of a kernel: where it is, what the kernel does with it, and how many
// items lie there. Methods of this name set one, because returning one is slower, and leave a nil one
// alone.
type MemoryArg struct {
	Span
	Count  uint64 // bytes, elements or rows, as Len counts them
	Stride uint64 // bytes from one of them to the next

	in      *Reservation // nil: it is found by its address
	refused error        // see Refuse
}

// Refuse sets m to memory that cannot be used: calls that need it return err. It leaves a nil m alone.
func (m *MemoryArg) Refuse(err error) {
	if m != nil {
		*m = MemoryArg{refused: err}
	}
}

// Err says why the memory cannot be used: as Refuse has set it, or because the Range or the
// Reservation is closed, or asleep.
func (m *MemoryArg) Err() error {
	if m == nil {
		return fmt.Errorf("%w: no memory", ErrInvalid)
	}
	if m.refused != nil {
		return m.refused
	}
	if m.in == nil {
		return nil
	}
	return m.in.checkOpen()
}

// LaunchMemory is memory that launches use. It remembers what was checked, so a later launch
// of the same memory with the same LaunchMemory costs less. Not safe for concurrent use.
type LaunchMemory struct {
	MemoryArg

	// The last lock, and the check that it was made with if that need not be made again; see
	// lockMemory.
	locked         lockedSpan
	checkedOn      *Stream
	checkedChanges uint64
}

// Set sets the memory to m, and reports whether that is a change. A change forgets earlier checks. Nil is
// no memory, which launches refuse.
func (l *LaunchMemory) Set(m *MemoryArg) bool {
	if m == nil {
		m = &MemoryArg{}
	}
	// By fields: a comparison of the whole would wait for them to be in memory.
	if l.Addr == m.Addr && l.Size == m.Size && l.Access == m.Access && l.Count == m.Count && l.Stride == m.Stride && l.in == m.in && l.refused == m.refused { //nolint:errorlint // whether it is a change
		return false
	}
	*l = LaunchMemory{MemoryArg: *m}
	return true
}

// MemoryArg sets m to the range as an argument of a kernel: its bytes up to Len.
func (g *Range) MemoryArg(m *MemoryArg) {
	if m == nil {
		return
	}
	if g == nil || g.r == nil {
		*m = MemoryArg{}
		return
	}
	g.r.MemoryArg(m, 0, g.Len())
}

// MemoryArg sets m to n bytes from off on as an argument of a kernel, which writes them
// unless the reservation is read-only.
func (r *Reservation) MemoryArg(m *MemoryArg, off, n uint64) {
	if m == nil {
		return
	}
	if r == nil || r.dev == nil {
		*m = MemoryArg{}
		return
	}
	m.Access, m.refused = r.grants.Most, nil
	m.Addr, m.Size, m.Count, m.Stride, m.in = r.ptr+Ptr(off), n, n, 1, r
}

// Launch queues the kernel on the stream, which must be of the module's device. l.Args can
// be used again once it returns. l.Memory is overwritten with the spans of memory.
//
// memory is what the kernel uses. Until the kernel is queued none of it is unmapped, and no access to it
// is taken away. Later calls that do so wait for the kernel as for any work.
//
//	ErrBounds      some of the memory is not mapped
//	ErrPermission  the device has too little access to it
//	ErrInvalid     UsedBy has named other streams for it
//	ErrBusy        access to it is being changed, or in doubt
//	ErrAsleep      it is of a range that sleeps
//	ErrClosed      it is of one that is closed
//
// With 0 bytes, Launch checks only the first byte at an address, and nothing of a Range. Memory in no
// reservation is left to the driver. A kernel that touches unmapped memory loses all devices of the
// process, until the process ends.
//
// Launch returns ErrInvalid beyond a limit of the device or the kernel, and ErrNotSupported for a launch
// attribute that the driver does not know. On a stream that is being captured the kernel becomes part of
// the graph, which remembers the memory and the module.
func (f *Function) Launch(s *Stream, l *Launch, memory []LaunchMemory) error {
	if f == nil || f.m == nil {
		return s.wrap("launch", 0, 0, fmt.Errorf("%w: no function", ErrInvalid))
	}
	if err := f.launch(s, l, memory); err != nil {
		return s.wrap(f.op, 0, 0, err)
	}
	return nil
}

func (f *Function) launch(s *Stream, l *Launch, memory []LaunchMemory) error {
	o, err := s.use()
	if err != nil {
		return err
	}
	defer s.mu.RUnlock()
	if o != f.m.on {
		return fmt.Errorf("%w: the kernel is loaded on %v, the stream is of %v", ErrInvalid, f.m.dev, s.dev)
	}
	if f.m.closed.Load() {
		return errModuleClosed
	}
	if err := s.lockForKernel(memory); err != nil {
		return err
	}
	defer unlockMemory(memory)
	l.Memory = l.Memory[:0]
	for i := range memory {
		// Of what the driver sees, 0 bytes are all that is mapped from there on.
		if m := &memory[i]; m.Size > 0 || m.in == nil {
			l.Memory = append(l.Memory, m.Span)
		}
	}
	if err := s.remember(o, f.m, l.Memory...); err != nil {
		return err
	}
	return f.m.raw.Launch(f.handle, l, s.queued())
}
