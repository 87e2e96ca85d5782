package vmm

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// pinned is the reservations that a copy touches, held in shared use: memory in
// them cannot retire before the copy has been queued, or has ended.
type pinned [2]*Reservation

// span is memory that a copy reads or writes.
type span struct {
	p    Ptr
	n    uint64
	need Access
}

// pin takes the reservations that two spans lie in, the lower address first,
// and checks that they are mapped there and that this device's access is not
// about to go. Memory that no reservation knows (plain, pinned) is the driver's to
// judge.
func (d *Device) pin(a, b span) (p pinned, err error) {
	if b.p < a.p {
		a, b = b, a
	}
	sys := d.port.sys
	if a.n > 0 {
		p[0] = sys.find(a.p)
	}
	if b.n > 0 {
		p[1] = sys.find(b.p)
	}
	if p[0] != nil {
		p[0].use.RLock()
	}
	if p[1] != nil && p[1] != p[0] {
		p[1].use.RLock()
	}
	err = p[0].covers(a, d.port)
	if err == nil {
		err = p[1].covers(b, d.port)
	}
	if err != nil {
		p.unpin()
	}
	return p, err
}

// unpin undoes pin.
func (p pinned) unpin() {
	if p[0] != nil {
		p[0].use.RUnlock()
	}
	if p[1] != nil && p[1] != p[0] {
		p[1].use.RUnlock()
	}
}

// covers is nil if the device may use the span, as far as r knows.
func (r *Reservation) covers(s span, by *port) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.live(); err != nil {
		return err
	}
	for _, l := range r.leaving {
		if l.port == by && s.need > l.left {
			return fmt.Errorf("%w: access of device %d is being changed", ErrBusy, by.n)
		}
	}
	return r.readable(uint64(s.p-r.ptr), s.n)
}

// CopyIn copies src to the device and has finished when it returns. It waits
// for nothing that other streams have queued. Where the CPU cannot address the
// memory, large copies go through pinned memory of the library's own, as do
// those of Range.
func (d *Device) CopyIn(dst Ptr, src []byte) error {
	n := uint64(len(src))
	pins, raw, err := d.pinned(span{dst, n, ReadWrite})
	if err == nil && n > 0 {
		err = d.port.copyIn(raw, dst, src)
		pins.unpin()
	}
	return d.fail("copy in", dst, n, err)
}

// CopyOut copies device memory to dst and has finished when it returns. It
// waits for nothing that other streams have queued; Range.ReadAt does.
func (d *Device) CopyOut(dst []byte, src Ptr) error {
	n := uint64(len(dst))
	pins, raw, err := d.pinned(span{src, n, Read})
	if err == nil && n > 0 {
		err = d.port.copyOut(raw, dst, src)
		pins.unpin()
	}
	return d.fail("copy out", src, n, err)
}

// pinned pins s for a copy on the library's own stream.
func (d *Device) pinned(s span) (pins pinned, raw driver.Device, err error) {
	if raw, err = d.raw(); err != nil {
		return pins, nil, err
	}
	if s.p+Ptr(s.n) < s.p {
		return pins, nil, fmt.Errorf("%w: the addresses overflow", ErrBounds)
	}
	pins, err = d.pin(s, span{})
	return pins, raw, err
}
