package vmm

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/holds"
	"github.com/cuvmm/cuvmm/vmm/internal/hostcopy"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
	"github.com/cuvmm/cuvmm/vmm/internal/rows"
)

// Mirror is a copy in host memory of a span of device memory: the program reads and writes Bytes, and
// Flush and Close write them back. It is a copy on every driver, the host's included: the device sees
// what is written to Bytes only after a Flush. If the CPU can address the memory, Range.Host needs no
// copy.
//
// While the mirror is open its device memory is held, as by Range.Hold: Clip, Unmap, Sleep, Close, and
// lowering Len below its end return ErrBusy. Meanwhile the program must not free a pool's block, or
// memory in no reservation.
//
// A copy of 32 MiB or more goes through pinned memory of the library's own, piece by piece and on several
// processors at once, as all large copies do. MirrorOptions.MaxPinned puts the mirror itself into pinned
// memory, which copies faster and is slow to make. Use it for a mirror with many calls of Refresh and
// Flush.
//
// Safe for concurrent use, with one exception: the program must order its reads and writes of Bytes with
// Flush, Refresh and Close. The caller must Close it.
type Mirror struct {
	// Immutable.
	dev     *Device
	on      *openDevice
	ptr     Ptr
	res     *Reservation // nil for memory that no reservation knows
	write   bool
	bytes   []byte
	release func() // of the hold

	closing atomic.Bool // only Close works any more; changes with mu held

	mu     lock.Mutex // held across copies
	closed bool
	marked bool // MarkDirty was called: dirty is what is written back, else all is
	dirty  []dirtySpan

	heldMu sync.Mutex // no other lock is taken while it is held
	held   holds.List // exports that keep it open; guarded by heldMu; grows with mu held

	// What bytes are part of: one of the two.
	pinned    Ptr // 0 if there is none
	allocator driver.HostAllocator
	memory    hostcopy.Buffer
}

// dirtySpan is bytes that are to be written back.
type dirtySpan struct{ off, end uint64 }

// MirrorOptions is how a Mirror is made. Set Init, Write or both, else NewMirror returns ErrInvalid,
// because the mirror would have nothing to do with the memory.
type MirrorOptions struct {
	// Init reads the memory first. Without it Bytes are zeros until they are written to.
	Init bool
	// Write makes Flush and Close write back what MarkDirty has marked, or everything if MarkDirty was
	// never called. NewMirror returns ErrPermission without write access. So do NewMirror, Flush and
	// Close once ReserveOptions.Owner has a method Sealed() bool that returns true. Without Write the
	// device memory is never written to.
	Write bool
	// MaxPinned puts a mirror of up to this many bytes into pinned memory of its own, which Stats.Pinned
	// counts. Making and closing such a mirror takes long, may wait for the whole device, and returns
	// ErrCapturing while a stream of it is being captured. 0 is none.
	MaxPinned uint64
}

// NewMirror makes a mirror of the n bytes from p on: of a Range, a Reservation, a View, a pool's block or
// plain memory. It returns ErrBounds unless all of it is mapped, and ErrAsleep for a sleeping range. With
// Init it first waits for the work that may write to the memory, as Range.ReadAt does, and so returns
// ErrCapturing during a capture. For memory in no reservation it waits for nothing. The caller must Close
// the Mirror.
func (d *Device) NewMirror(p Ptr, n uint64, o MirrorOptions) (_ *Mirror, err error) {
	defer func() { err = d.wrap("make mirror", p, n, err) }()
	if err := d.checkOpen(); err != nil {
		return nil, err
	}
	if !o.Init && !o.Write {
		return nil, fmt.Errorf("%w: neither Init nor Write is set", ErrInvalid)
	}
	m := &Mirror{dev: d, ptr: p, write: o.Write, release: func() {}}
	if err := d.track(m, "mirror of "+errtext.Size(n)); err != nil { // the device stays open now
		return nil, err
	}
	if err = m.hold(n); err == nil {
		err = m.allocate(n, o.MaxPinned)
	}
	if err == nil && o.Init {
		err = m.read()
	}
	if err == nil {
		return m, nil
	}
	// The caller gets no Mirror, so what cannot be given back now is the device's.
	d.rename(m, "what a failed NewMirror could not give back")
	return nil, d.discard(err, m.giveBack)
}

// hold keeps the memory mapped, and checks that it is and that the device may access it.
func (m *Mirror) hold(n uint64) (err error) {
	access := AccessRead
	if m.write {
		access = AccessReadWrite
	}
	if m.on, err = m.dev.ensureOpen(); err != nil {
		return err
	}
	if m.res = m.dev.state.parent.find(m.ptr); m.res != nil {
		release, err := m.res.addHold(uint64(m.ptr-m.res.ptr), n, heldHere("a mirror"))
		if err != nil {
			return err
		}
		m.release = release
	} else if n > m.dev.info.Memory {
		return fmt.Errorf("%w: the device has %s", ErrBounds, errtext.Size(m.dev.info.Memory))
	}
	// After the hold: what is mapped now stays so.
	locked, _, err := m.lock(Span{Addr: m.ptr, Size: n, Access: access})
	if err == nil {
		locked.unlock()
	}
	return err
}

// lock is Device.lockSpan that also checks the device's access, and that nothing sealed is written
// to.
func (m *Mirror) lock(s Span) (locked lockedSpans, o *openDevice, err error) {
	// Asked before anything is locked, since the owner takes a lock of its own.
	if owner, ok := m.res.Owner().(interface{ Sealed() bool }); ok && s.Access == AccessReadWrite && owner.Sealed() {
		return lockedSpans{}, nil, fmt.Errorf("%w: what lies at %v is sealed", ErrPermission, s.Addr)
	}
	if locked, o, err = m.dev.lockSpan(nil, s); err != nil || m.res == nil {
		return locked, o, err
	}
	if have := m.res.Access(m.dev); have < s.Access {
		locked.unlock()
		return lockedSpans{}, nil, fmt.Errorf("%w: %v has access %v to %v, not %v", ErrPermission, m.dev, have, s.Addr, s.Access)
	}
	return locked, o, nil
}

// allocate makes the host memory.
func (m *Mirror) allocate(n, maxPinned uint64) (err error) {
	if n == 0 {
		m.bytes = []byte{}
		return nil
	}
	if n > maxPinned {
		m.memory.Take, m.memory.Return = takeAddresses, giveAddresses
		if err = m.memory.Ensure(n); err == nil {
			m.memory.Wrote(n) // or the program does when it likes
			m.bytes = m.memory.Mem[:n:n]
		}
		return err
	}
	var ok bool
	if m.allocator, ok = order.As[driver.HostAllocator](m.on.Device); !ok {
		return fmt.Errorf("%w: pinned memory", ErrNotSupported)
	}
	if err = m.on.state.notCapturing(); err != nil {
		return err
	}
	if m.pinned, m.bytes, err = m.allocator.AllocHost(n); err != nil {
		return err
	}
	m.on.mirrors.Add(n)
	clear(m.bytes) // the driver may return memory that was in use before
	return nil
}

// read copies the device memory to the host's, after the work that may write to it.
func (m *Mirror) read() error {
	if m.res != nil {
		stops := m.on.state.parent.stops.ended.Load()
		if err := cmp.Or(m.res.waitForWork(), m.res.stopped(stops)); err != nil {
			return err
		}
	}
	return m.copy(dirtySpan{0, uint64(len(m.bytes))}, AccessRead, func(o *openDevice, p Ptr, b []byte) error {
		if m.pinned != 0 {
			return o.CopyOut(b, p)
		}
		return o.stage.CopyOut(b, rows.Flat(p))
	})
}

// writeBack writes bytes to the device memory.
func (m *Mirror) writeBack(s dirtySpan) error {
	return m.copy(s, AccessReadWrite, func(o *openDevice, p Ptr, b []byte) error {
		if m.pinned != 0 {
			return o.CopyIn(p, b)
		}
		return o.stage.CopyIn(rows.Flat(p), b)
	})
}

// copy runs f for a span of both memories. The driver's own copy of pinned memory is as fast as
// one can be, so f does not stage that.
func (m *Mirror) copy(s dirtySpan, a Access, f func(o *openDevice, p Ptr, b []byte) error) error {
	if s.off == s.end {
		return nil
	}
	p := m.ptr + Ptr(s.off)
	locked, o, err := m.lock(Span{Addr: p, Size: s.end - s.off, Access: a})
	if err != nil {
		return err
	}
	defer locked.unlock()
	if err := o.stage.Sync(); err != nil {
		return err
	}
	return f(o, p, m.bytes[s.off:s.end])
}

// with runs f with m.mu held, if the mirror is open.
func (m *Mirror) with(op string, f func() error) error {
	if m == nil || m.dev == nil {
		return (*Device)(nil).wrap(op, 0, 0, fmt.Errorf("%w: no mirror", ErrInvalid))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing.Load() {
		return m.wrap(op, fmt.Errorf("%w: mirror", ErrClosed))
	}
	return m.wrap(op, f())
}

func (m *Mirror) wrap(op string, err error) error {
	return m.dev.wrap(op, m.ptr, 0, err)
}

// Ptr is the first address of the memory that is mirrored.
func (m *Mirror) Ptr() Ptr { return nonnil.Of(m).ptr }

// Bytes is the mirror, as long as the memory that it mirrors; nil after Close or Discard. The
// slice is valid until then: touching it after that ends the process.
func (m *Mirror) Bytes() []byte {
	if m == nil || m.closing.Load() {
		return nil
	}
	return m.bytes
}

// MarkDirty says that the n bytes of the mirror from off on have been written to, or are about to be.
// From the first call on, one of 0 bytes included, Flush and Close write back nothing but what was marked
// since it was last written back; adjacent spans are written as one. It returns ErrBounds for a span
// outside the mirror, and ErrPermission without Write. It waits for a Flush or a Refresh that is under
// way.
func (m *Mirror) MarkDirty(off, n uint64) error {
	return m.with("mark mirror", func() error {
		if err := m.checkWritable(); err != nil {
			return err
		}
		if have := uint64(len(m.bytes)); off > have || n > have-off {
			return fmt.Errorf("%w: %d bytes at %d in a mirror of %d", ErrBounds, n, off, have)
		}
		m.marked = true
		if n > 0 {
			m.dirty = addSpan(m.dirty, dirtySpan{off, off + n})
		}
		return nil
	})
}

// addSpan adds s to spans that are sorted and do not touch each other, and keeps them so.
func addSpan(all []dirtySpan, s dirtySpan) []dirtySpan {
	i, _ := slices.BinarySearchFunc(all, s.off, func(x dirtySpan, off uint64) int {
		if x.end < off {
			return -1
		}
		return 1
	})
	j := i // [i, j) touch s
	for j < len(all) && all[j].off <= s.end {
		s = dirtySpan{min(s.off, all[j].off), max(s.end, all[j].end)}
		j++
	}
	return slices.Replace(all, i, j, s)
}

// checkWritable is nil if the mirror is written back.
func (m *Mirror) checkWritable() error {
	if !m.write {
		return fmt.Errorf("%w: the mirror was made without Write", ErrPermission)
	}
	return nil
}

// Flush writes back what was marked, or everything if MarkDirty was never called. It has finished when it
// returns and, like Range.WriteAt, does not wait for work of streams. After an error, the next Flush or
// Close writes what is not known to be written. Flush returns ErrPermission without Write, or if the
// device may not write any more.
func (m *Mirror) Flush() error {
	return m.with("flush mirror", func() error {
		if err := m.checkWritable(); err != nil {
			return err
		}
		return m.flushLocked()
	})
}

// flushLocked needs m.mu.
func (m *Mirror) flushLocked() error {
	if !m.marked {
		return m.writeBack(dirtySpan{0, uint64(len(m.bytes))})
	}
	for len(m.dirty) > 0 {
		if err := m.writeBack(m.dirty[0]); err != nil {
			return err
		}
		m.dirty = m.dirty[1:]
	}
	return nil
}

// Refresh reads the memory again, as NewMirror does with Init. Changes of Bytes that were not written
// back are lost, and so are marks. After an error Bytes may be a mixture of old and new, and marks
// remain.
func (m *Mirror) Refresh() error {
	return m.with("refresh mirror", func() error {
		if err := m.read(); err != nil {
			return err
		}
		m.dirty = nil
		return nil
	})
}

// holdOpen keeps the mirror open until release.
func (m *Mirror) holdOpen(what string) (release func(), err error) {
	h := &holds.Hold{What: what}
	err = m.with("hold mirror", func() error {
		m.heldMu.Lock()
		defer m.heldMu.Unlock()
		m.held.Add(h)
		return nil
	})
	return func() {
		m.heldMu.Lock()
		defer m.heldMu.Unlock()
		m.held.Remove(h)
	}, err
}

// checkNotHeld is nil unless holdOpen keeps it open.
func (m *Mirror) checkNotHeld() error {
	m.heldMu.Lock()
	defer m.heldMu.Unlock()
	return heldBy(m.held.All())
}

// Close flushes a mirror that was made with Write, and gives the memory up. If it cannot write
// back, it returns the error and the mirror is as before: call it again, or Discard. If the
// device is lost, the memory is given up all the same and the error returned. After any other
// error only Close works any more; call it again. While package dlpack exports the mirror, Close returns
// ErrBusy and changes nothing. Twice is fine, and so is a nil Mirror.
func (m *Mirror) Close() error { return m.close("close mirror", true) }

// Discard is Close without writing back. After Close it does nothing, so that a program can defer it.
func (m *Mirror) Discard() error { return m.close("discard mirror", false) }

func (m *Mirror) close(op string, flush bool) (err error) {
	if m == nil || m.dev == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	if err := m.checkNotHeld(); err != nil {
		return m.wrap(op, err)
	}
	if flush && m.write && !m.closing.Load() {
		if err = m.flushLocked(); err != nil && !lost(err) {
			return m.wrap(op, err)
		}
	}
	return m.wrap(op, errtext.Join(err, "and giving memory back", m.giveBack()))
}

// giveBack gives back what the mirror has, and can be called again. The caller has m.mu, or is
// the only one who knows the mirror.
func (m *Mirror) giveBack() error {
	m.closing.Store(true)
	m.release()
	if m.pinned != 0 {
		// Freeing pinned memory would destroy a capture.
		if err := m.on.state.notCapturing(); err != nil {
			return err
		}
		if err := m.allocator.FreeHost(m.pinned); err != nil && !lost(err) {
			return err
		}
		m.on.mirrors.Add(-uint64(len(m.bytes)))
		m.pinned = 0
	}
	if err := m.memory.Free(); err != nil {
		return err
	}
	m.closed = true
	m.dev.untrack(m)
	return nil
}
