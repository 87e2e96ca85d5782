package vmm

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
	"github.com/cuvmm/cuvmm/vmm/internal/rows"
	"github.com/cuvmm/cuvmm/vmm/internal/staging"
)

// lockedSpan is a reservation that a call touches: its memory is not unmapped, and no
// access to it ends, before unlock.
type lockedSpan struct {
	r     *Reservation // nil for memory in no reservation
	epoch uint64
}

func (l lockedSpan) unlock() {
	if l.r != nil {
		l.r.copies.End(l.epoch)
	}
}

// lockedSpans is what a copy touches.
type lockedSpans [2]lockedSpan

// lockSpans locks the reservations that at most two spans lie in. It checks that all
// of the spans is mapped, that this device's access is not about to go, and that
// UsedBy has not named other streams than on, which is nil for the library's own.
// Memory in no reservation (of cuMemAlloc, or of the host) is the driver's to judge.
func (d *Device) lockSpans(on *Stream, spans ...Span) (l lockedSpans, err error) {
	for i, s := range spans {
		if s.Size == 0 {
			continue
		}
		if l[i], err = d.lockReservation(on, d.state.parent.find(s.Addr), s); err != nil {
			l.unlock()
			return lockedSpans{}, err
		}
	}
	return l, nil
}

// lockReservation locks r, which the span lies in; nil locks nothing.
func (d *Device) lockReservation(on *Stream, r *Reservation, s Span) (l lockedSpan, err error) {
	if r == nil {
		return l, nil
	}
	// Counted before it is checked: what takes the memory away later waits.
	l = lockedSpan{r, r.copies.Begin()}
	if err = r.checkSpan(s, d.state, on); err != nil {
		l.unlock()
		return lockedSpan{}, err
	}
	return l, nil
}

// unlock undoes lockSpans.
func (l *lockedSpans) unlock() {
	for _, x := range l {
		x.unlock()
	}
}

// lockForKernel locks memory that a kernel uses, until unlockMemory. After an error nothing is
// locked.
func (s *Stream) lockForKernel(memory []LaunchMemory) error {
	for i := range memory {
		if err := s.lockMemory(&memory[i]); err != nil {
			unlockMemory(memory[:i])
			return err
		}
	}
	return nil
}

// unlockMemory undoes lockForKernel.
func unlockMemory(memory []LaunchMemory) {
	for i := range memory {
		memory[i].locked.unlock()
	}
}

// lockMemory locks one of them. Of 0 bytes at an address the first byte is checked.
//
// A check that succeeded need not be made again as long as two numbers are what they were. One is the
// epoch of the reservation's copies: whatever takes memory or access away raises it after it has marked
// what goes, and before it waits for copies. The other is users.Changes, which rises with each change of
// the devices or the named streams.
func (s *Stream) lockMemory(m *LaunchMemory) (err error) {
	if m.checkedOn == s {
		epoch := m.in.copies.Begin()
		if epoch == m.locked.epoch && m.in.users.Changes() == m.checkedChanges {
			return nil // locked is what it was
		}
		m.in.copies.End(epoch)
	}
	m.checkedOn = nil
	x, r := m.Span, m.in
	if r == nil {
		x.Size = max(x.Size, 1)
		r = s.dev.state.parent.find(x.Addr)
	}
	switch {
	case m.refused != nil:
		return m.refused
	case x.Addr == 0:
		return fmt.Errorf("%w: no memory", ErrInvalid)
	case x.Addr+Ptr(x.Size) < x.Addr:
		return fmt.Errorf("%w: the addresses overflow", ErrBounds)
	}
	if r != nil {
		m.checkedChanges = r.users.Changes()
	}
	m.locked, err = s.dev.lockReservation(s, r, x)
	if err == nil && m.in != nil {
		m.checkedOn = s
	}
	return err
}

// unlockAll unlocks all of them.
func unlockAll(locked []lockedSpan) {
	for _, l := range locked {
		l.unlock()
	}
}

// checkSpan is nil if copies and kernels of the device may use the span on that stream, as far
// as r knows. The caller has begun a copy.
func (r *Reservation) checkSpan(s Span, by *deviceState, on *Stream) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkOpen(); err != nil {
		return err
	}
	if err := r.checkGrantedLocked(s.Access, by); err != nil {
		return err
	}
	if err := r.checkStreamLocked(on); err != nil {
		return err
	}
	off := uint64(s.Addr - r.ptr)
	end := off + s.Size
	if end < off || end > r.size {
		return r.outOfBounds(off, s.Size)
	}
	if have := r.table.Accessible(off, end); have < end {
		return fmt.Errorf("%w: %v is not mapped, or given up", ErrBounds, r.ptr+Ptr(have))
	}
	return nil
}

// checkGrantedLocked is nil if the device has that access, and will have it when what begins now
// ends. It needs r.mu.
func (r *Reservation) checkGrantedLocked(a Access, by *deviceState) error {
	invariants.Held(&r.mu)
	if r.dev.state.parent.hooks.noAccessCheck {
		return nil
	}
	if have := r.grants.Access(by); a > have {
		return fmt.Errorf("%w: device %d has access %v to %v, not %v", ErrPermission, by.n, have, r.ptr, a)
	}
	switch allowed, inDoubt := r.grants.Allowed(by); {
	case inDoubt != nil:
		return fmt.Errorf("%w: what device %d may access is in doubt until the next Grant, Revoke, EnablePeers or Trim: %w", ErrBusy, by.n, inDoubt)
	case a > allowed:
		return fmt.Errorf("%w: access of device %d is being changed", ErrBusy, by.n)
	}
	return nil
}

// checkStreamLocked is nil if waitForWork waits for the stream. It always does for the
// library's own, which is nil here. It needs r.mu.
func (r *Reservation) checkStreamLocked(s *Stream) error {
	invariants.Held(&r.mu)
	if s != nil && !r.users.MayUse(s) && !r.dev.state.parent.hooks.noNameCheck {
		return fmt.Errorf("%w: UsedBy has named other streams", ErrInvalid)
	}
	return nil
}

// CopyIn copies src to the device and has finished when it returns. It does not wait for work of other
// streams. If the CPU cannot address the memory, large copies go through pinned memory of the library's
// own, as those of Range do.
func (d *Device) CopyIn(dst Ptr, src []byte) error {
	n := uint64(len(src))
	locked, o, err := d.lockSpan(nil, Span{Addr: dst, Size: n, Access: AccessReadWrite})
	if err == nil && n > 0 {
		err = o.stage.CopyIn(rows.Flat(dst), src)
		locked.unlock()
	}
	return d.wrap("copy in", dst, n, err)
}

// CopyOut copies device memory to dst and has finished when it returns. Unlike Range.ReadAt, it does not
// wait for work of other streams.
func (d *Device) CopyOut(dst []byte, src Ptr) error {
	n := uint64(len(dst))
	locked, o, err := d.lockSpan(nil, Span{Addr: src, Size: n, Access: AccessRead})
	if err == nil && n > 0 {
		err = o.stage.CopyOut(dst, rows.Flat(src))
		locked.unlock()
	}
	return d.wrap("copy out", src, n, err)
}

// lockSpan is lockSpans of one span, which may be any, and opens the device.
func (d *Device) lockSpan(on *Stream, s Span) (locked lockedSpans, o *openDevice, err error) {
	if o, err = d.ensureOpen(); err != nil {
		return locked, nil, err
	}
	if s.Addr+Ptr(s.Size) < s.Addr {
		return locked, nil, fmt.Errorf("%w: the addresses overflow", ErrBounds)
	}
	locked, err = d.lockSpans(on, s)
	return locked, o, err
}

// CopyIn copies pageable host memory to the device in the stream's order: work queued later sees it. It
// returns as soon as src may be reused, before the copy has run, and waits for no other stream. It
// returns ErrCapturing on a stream that is being captured, because a graph would copy whatever lies in
// the library's buffer by then. After an error dst may hold part of src.
func (s *Stream) CopyIn(dst Ptr, src []byte) error {
	_, err := s.copyIn(dst, src)
	return s.wrap("copy in", dst, uint64(len(src)), err)
}

// CopyOut copies device memory to dst after what the stream has queued, and returns when dst is filled.
// It returns ErrCapturing on a stream that is being captured.
func (s *Stream) CopyOut(dst []byte, src Ptr) (err error) {
	stops := inside{}.Stops(s)
	defer func(n uint64, src Ptr) {
		if err == nil {
			err = stops()
		}
		err = s.wrap("copy out", src, n, err)
	}(uint64(len(dst)), src)
	st, l, err := s.borrowLane(Span{Addr: src, Size: uint64(len(dst)), Access: AccessRead})
	if err != nil {
		return err
	}
	if l == nil {
		return s.dev.CopyOut(dst, src)
	}
	defer st.PutBack(l)
	return st.Out(l, s.order.Queue, dst, func(b *staging.Block, p Ptr, off, n uint64) error {
		from := src + Ptr(off)
		return s.move(l, b, p, from, Span{Addr: from, Size: n, Access: AccessRead})
	})
}

// borrowLane checks a copy between the span and host memory and borrows a lane for it.
// If there is no lane, it waits for the stream: the Device makes the copy then.
func (s *Stream) borrowLane(dev Span) (st *staging.Lanes, l *staging.Lane, err error) {
	err = s.with(func(o *openDevice) error {
		st = o.stage
		if dev.Addr+Ptr(dev.Size) < dev.Addr {
			return fmt.Errorf("%w: the addresses overflow", ErrBounds)
		}
		if err := o.NotCapturing(&s.order); err != nil {
			return err
		}
		return o.CheckAlive()
	})
	if err != nil || dev.Size == 0 {
		return nil, nil, err
	}
	if l, err = st.Borrow(s.order.Queue); err != nil || l != nil {
		return st, l, err
	}
	// What the stream may not use is refused before the wait.
	p, err := s.dev.lockSpans(s, dev)
	if err == nil {
		p.unlock()
		err = s.sync()
	}
	return nil, nil, err
}

// copyIn is CopyIn, and reports whether something may be queued though it failed.
func (s *Stream) copyIn(dst Ptr, src []byte) (queued bool, err error) {
	st, l, err := s.borrowLane(Span{Addr: dst, Size: uint64(len(src)), Access: AccessReadWrite})
	if err != nil {
		return false, err
	}
	if l == nil {
		return false, s.dev.CopyIn(dst, src)
	}
	defer st.PutBack(l)
	return st.In(l, s.order.Queue, src, func(b *staging.Block, p Ptr, off, n uint64) error {
		to := dst + Ptr(off)
		return s.move(l, b, to, p, Span{Addr: to, Size: n, Access: AccessReadWrite})
	})
}

// move queues one copy between a block and the device, whose side is given again as a
// span. The block is busy until it has run. A stream of another
// context takes no event of this one and is waited for instead.
func (s *Stream) move(l *staging.Lane, b *staging.Block, dst, src Ptr, dev Span) error {
	var eventMissing bool
	var wait func() error
	queue := func(o *openDevice) (err error) {
		// Asked, and copied, and recorded while BeginCapture and a wait for an event of a
		// capture are kept off: else the copy would become part of a graph.
		if err := o.NotCapturing(&s.order); err != nil {
			return err
		}
		p, err := s.dev.lockSpans(s, dev)
		if err != nil {
			return err
		}
		defer p.unlock()
		if wait, err = o.Room(&s.order); wait != nil || err != nil {
			return err
		}
		if err := o.Copy(dst, src, dev.Size, s.order.Queue); err != nil {
			return err
		}
		err = l.Recorded(b, s.order.Queue, o.Record(b.Event(), &s.order))
		eventMissing = err != nil
		return err
	}
	err := s.with(queue)
	for wait != nil && err == nil { // without locks of the stream and the memory
		if err = wait(); err == nil {
			err = s.with(queue)
		}
	}
	if !eventMissing {
		return err
	}
	// No event was recorded after the copy, so the block is free only once the stream has no
	// work left. For the memory, waitForWork waits as for any work of the stream.
	second := s.sync()
	if l.Synced(b, second); second != nil {
		return errtext.Join(err, "and waiting for its stream", second)
	}
	// A wrapped stream of another context runs the copy, and refuses only this context's
	// event. The copy has run by now.
	if s.order.Wrapped && errors.Is(err, ErrInvalid) {
		return nil
	}
	return err
}

// Copy2D queues a copy of count rows of width bytes each, without the padding between them on either
// side. It returns ErrInvalid if width is above a pitch. Either side is as for Copy. All memory from the
// first row to the end of the last must be mapped and accessible, the padding included. After an error of
// the driver some rows may be copied.
func (s *Stream) Copy2D(dst, src PitchedPtr, width, count uint64) error {
	to, ok := dst.Extent(width, count)
	from, also := src.Extent(width, count)
	return s.wrap("copy rows", dst.Ptr, to, s.with(func(o *openDevice) error {
		if !ok || !also {
			return fmt.Errorf("%w: %d rows of %d bytes from %v to %v", ErrInvalid, count, width, src, dst)
		}
		write, read := Span{Addr: dst.Ptr, Size: to, Access: AccessReadWrite}, Span{Addr: src.Ptr, Size: from, Access: AccessRead}
		p, err := s.dev.lockSpans(s, write, read)
		if err != nil || to == 0 {
			return err
		}
		defer p.unlock()
		if err := s.remember(o, nil, write, read); err != nil {
			return err
		}
		return staging.CopyRows(o.Device, rows.At(dst, width), rows.At(src, width), width*count, s.queued())
	}))
}

// Pitch is the number of bytes from one row to the next that suits the device, for rows of rowBytes. It
// is at least rowBytes, and what cuMemAllocPitch would choose. If the driver prefers none, it is
// rowBytes. It makes the device's context if there is none yet.
func (d *Device) Pitch(rowBytes uint64) (_ uint64, err error) {
	defer func() { err = d.wrap("choose pitch", 0, rowBytes, err) }()
	o, err := d.ensureOpen()
	if err != nil {
		return 0, err
	}
	if rowBytes == 0 {
		return 0, fmt.Errorf("%w: rows of 0 bytes", ErrInvalid)
	}
	if c, ok := order.As[driver.Copier2D](o.Device); ok {
		if n, err := c.Pitch(rowBytes); !errors.Is(err, ErrNotSupported) {
			return n, err
		}
	}
	return rowBytes, nil
}
