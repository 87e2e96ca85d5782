package ipc

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Memory is plain memory, as cuMemAlloc makes it: this process's own, from [Alloc], or
// another one's, from [Open]. Safe for concurrent use. The caller must Close it. Until then
// Close of the Device returns ErrBusy.
type Memory struct {
	// Immutable.
	dev   *vmm.Device
	calls driver.LegacyIPC
	plain driver.Allocator // nil for memory of another process
	ptr   vmm.Ptr
	size  uint64
	keep  func() // lets the device close
	noted door.Allocation

	counted door.Counted // nil for memory of another process

	mu      sync.RWMutex // shared by all calls but Close
	closing int          // calls of Close under way
	closed  bool
}

var errNoMemory = &vmm.OpError{Op: "use plain memory", Err: fmt.Errorf("%w: no memory", vmm.ErrInvalid)}

// Alloc allocates n bytes of plain memory on the device. What they contain is undefined. The
// driver rounds n up, and the memory beside it may be other plain memory of this process: on
// CUDA a process that opens the handle maps whole 2 MiB, and can reach what lies there, too.
// If the driver has no plain memory, or no handles for it, that is ErrNotSupported. If the device
// has no memory, what this process does not use of it is released, as for vmm.Device.Create. The
// memory counts in vmm.Device.SetLimit, by n bytes rounded up to the device's granularity, which is the most that the
// driver takes. The caller must Close it.
func Alloc(dev *vmm.Device, n uint64) (_ *Memory, err error) {
	defer func() { err = fail(dev, "allocate plain memory", 0, n, err) }()
	m, err := newMemory(dev, n)
	if err != nil {
		return nil, err
	}
	raw, err := dev.Raw()
	if err == nil {
		plain, ok := raw.(driver.Allocator)
		if !ok {
			err = fmt.Errorf("%w: plain memory", vmm.ErrNotSupported)
		} else if err = inside.VMM.WithMemory(dev, "allocate plain memory", "", n, func() error { return m.alloc(plain) }); err == nil {
			m.plain = plain
			m.noted = inside.VMM.NoteAllocation(dev, m.ptr, n)
			return m, nil
		}
	}
	m.keep()
	return nil, err
}

// alloc allocates the memory, and counts it.
func (m *Memory) alloc(plain driver.Allocator) (err error) {
	taken, err := m.mostTaken()
	if err != nil {
		return err
	}
	m.counted = inside.VMM.Counted(m.dev)
	if err = m.counted.Charge(taken); err != nil {
		return err
	}
	if m.ptr, err = plain.AllocPlain(m.size); err != nil {
		m.counted.Set(0)
	}
	return err
}

// mostTaken is how many bytes the driver takes at most. CUDA's puts small allocations side by side in a piece of its
// granularity, of which nothing tells who is in it.
func (m *Memory) mostTaken() (uint64, error) {
	gran, err := m.dev.Driver().Granularity(vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice, ID: m.dev.Info().Ordinal}})
	if err != nil {
		return 0, err
	}
	return m.size + min((gran-m.size%gran)%gran, math.MaxUint64-m.size), nil
}

// newMemory is memory without an address yet. It keeps the device open.
func newMemory(dev *vmm.Device, n uint64) (*Memory, error) {
	raw, err := dev.Raw()
	if err != nil {
		return nil, err
	}
	calls, ok := raw.(driver.LegacyIPC)
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: handles of plain memory", vmm.ErrNotSupported)
	case n == 0:
		return nil, fmt.Errorf("%w: memory of 0 bytes, or of unknown size: set Handle.Size", vmm.ErrInvalid)
	}
	keep, err := inside.VMM.KeepOpen(dev, "plain memory")
	return &Memory{dev: dev, calls: calls, size: n, keep: keep}, err
}

// Open maps the memory of a handle of another process, for the device. Handle.Size is taken
// as it is: of a handle that does not tell the size the caller must set it, rightly.
//
// A handle that this package made is checked first: ErrOwnHandle if this process made it,
// ErrExporterGone if the process that did has ended, ErrHandle if it is of an event or no
// handle. Of 64 bytes that another program made the driver decides. It says vmm.ErrInvalid,
// too, if that program has ended, or has freed the memory.
//
// The memory may lie on another device. The driver then makes it accessible to dev, which
// needs no vmm.EnableLegacyPeers, and the undo of one takes nothing away from it. No path to
// the device is vmm.ErrNotSupported.
//
// Opening a handle twice returns a second Memory at the same address. The mapping ends with
// the last Close of them. The other process must not free the memory before; what work that
// uses it does then is undefined. If it is killed, the memory is mapped until Close. The
// caller must Close it.
func Open(dev *vmm.Device, h Handle) (_ *Memory, err error) {
	defer func() { err = fail(dev, "open handle of memory", 0, h.Size, err) }()
	if err := h.check(KindMemory); err != nil {
		return nil, err
	}
	m, err := newMemory(dev, h.Size)
	if err != nil {
		return nil, err
	}
	if m.ptr, err = m.calls.OpenMem(driver.IPCHandle(h.Raw)); err != nil {
		m.keep()
		return nil, h.explain(KindMemory, err)
	}
	m.noted = inside.VMM.NoteAllocation(dev, m.ptr, m.size)
	return m, nil
}

// Device is the one that Alloc or Open was called with.
func (m *Memory) Device() *vmm.Device { return nonnil.Of(m).dev }

// Ptr is the first address.
func (m *Memory) Ptr() vmm.Ptr { return nonnil.Of(m).ptr }

// Len is the size in bytes.
func (m *Memory) Len() uint64 { return nonnil.Of(m).size }

// MemoryArg sets a to the memory as an argument of a kernel. Close waits for work of the
// device; for that of others the caller must wait before.
func (m *Memory) MemoryArg(a *vmm.MemoryArg) {
	*a = vmm.MemoryArg{}
	if m == nil || m.dev == nil {
		return
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.closed {
		*a = vmm.MemoryArg{Span: vmm.Span{Addr: m.ptr, Size: m.size, Access: vmm.AccessReadWrite}, Count: m.size, Stride: 1}
	}
}

// Handle is a handle by which other processes open the memory. Memory that was opened has
// none: pass on the handle by which it was.
func (m *Memory) Handle() (h Handle, err error) {
	err = m.with("make handle", func() error {
		if m.plain == nil {
			return fmt.Errorf("%w: the memory is another process's", vmm.ErrInvalid)
		}
		raw, err := m.calls.MemHandle(m.ptr)
		if err == nil {
			h = newHandle(m.dev, KindMemory, raw)
			h.Size = m.size
		}
		return err
	})
	return h, err
}

// ReadAt copies memory from byte off on to b, and has finished when it returns. It waits for
// nothing that streams have queued.
func (m *Memory) ReadAt(b []byte, off int64) (n int, err error) {
	err = m.with("read", func() error {
		n, err = m.part(b, off)
		if n == 0 {
			return err
		}
		if copyErr := m.dev.CopyOut(b[:n], m.ptr+vmm.Ptr(off)); copyErr != nil {
			n, err = 0, copyErr
		}
		return err
	})
	if errors.Is(err, io.EOF) {
		return n, io.EOF // io.ReaderAt's callers compare with ==
	}
	return n, err
}

// WriteAt copies b to the memory from byte off on, and has finished when it returns. It waits
// for nothing that streams have queued. If b does not fit nothing is written, and the error
// is vmm.ErrBounds.
func (m *Memory) WriteAt(b []byte, off int64) (n int, err error) {
	err = m.with("write", func() error {
		if n, err := m.part(b, off); err != nil || n < len(b) {
			return fmt.Errorf("%w: %d bytes at %d of %d", vmm.ErrBounds, len(b), off, m.size)
		}
		return m.dev.CopyIn(m.ptr+vmm.Ptr(off), b)
	})
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// part is how many bytes of b lie in the memory, and io.EOF if not all do.
func (m *Memory) part(b []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("%w: offset %d", vmm.ErrBounds, off)
	}
	left := m.size - min(m.size, uint64(off))
	if uint64(len(b)) > left {
		return int(left), io.EOF
	}
	return len(b), nil
}

// with makes a call while the memory is open.
func (m *Memory) with(op string, call func() error) error {
	if m == nil || m.dev == nil {
		return errNoMemory
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return fail(m.dev, op, m.ptr, m.size, fmt.Errorf("%w: plain memory", vmm.ErrClosed))
	}
	return fail(m.dev, op, m.ptr, m.size, call())
}

// Close waits for the work of the device, and then frees memory of Alloc, or gives up memory
// of Open. Other processes must have closed what they opened of Alloc's: that is theirs, and
// cannot be seen from here. While a stream of the device is being captured it returns
// ErrCapturing and changes nothing. After any error but ErrDeviceLost, with which all is lost
// anyway, it can be called again. Twice is fine, and so is a nil Memory.
func (m *Memory) Close() error {
	if m == nil || m.dev == nil {
		return nil
	}
	// Work on memory that is unmapped would lose the device, so graphs that use it are not launched
	// any more. The wait holds no lock: functions of vmm.Device.OnSync may use the memory.
	if !m.beginClose() {
		return nil
	}
	err := m.dev.Sync()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closing--
	if m.closed {
		return nil
	}
	if err == nil {
		err = m.closeLocked()
	}
	if err == nil || lost(err) {
		m.closed = true
		m.keep()
	} else if m.closing == 0 {
		m.noted.Restore()
	}
	return fail(m.dev, "close plain memory", m.ptr, m.size, err)
}

// beginClose has no graph launched that uses the memory, unless that is closed.
func (m *Memory) beginClose() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	if m.closing++; m.closing == 1 {
		m.noted.Retire()
	}
	return true
}

// closeLocked is Close, of memory that is open; it needs m.mu.
func (m *Memory) closeLocked() error {
	if m.plain == nil {
		return m.calls.CloseMem(m.ptr)
	}
	err := m.plain.FreePlain(m.ptr)
	if err == nil {
		m.counted.Set(0)
	}
	return err
}
