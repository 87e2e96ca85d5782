package vmm

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// pinned is the reservations that a copy touches, held in shared use: memory in
// them cannot retire before the copy has been queued, or has ended.
type pinned [2]*Reservation

// pin takes the reservations that [a, a+an) and [b, b+bn) lie in, the lower
// address first, and checks that they are mapped there. Memory that no
// reservation knows (plain, pinned) is the driver's to judge.
func (d *Device) pin(a Ptr, an uint64, b Ptr, bn uint64) (p pinned, err error) {
	if b < a {
		a, an, b, bn = b, bn, a, an
	}
	sys := d.port.sys
	if an > 0 {
		p[0] = sys.find(a)
	}
	if bn > 0 {
		p[1] = sys.find(b)
	}
	if p[0] != nil {
		p[0].use.RLock()
	}
	if p[1] != nil && p[1] != p[0] {
		p[1].use.RLock()
	}
	err = p[0].covers(a, an)
	if err == nil {
		err = p[1].covers(b, bn)
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

// covers is nil if [p, p+n) can be copied from and to, as far as r knows.
func (r *Reservation) covers(p Ptr, n uint64) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.live(); err != nil {
		return err
	}
	return r.readable(uint64(p-r.ptr), n)
}

// CopyIn copies src to the device and has finished when it returns. It waits
// for nothing that other streams have queued.
func (d *Device) CopyIn(dst Ptr, src []byte) error {
	n := uint64(len(src))
	pins, raw, err := d.pinned(dst, n)
	if err == nil && n > 0 {
		err = raw.CopyIn(dst, src)
		pins.unpin()
	}
	return d.fail("copy in", dst, n, err)
}

// CopyOut copies device memory to dst and has finished when it returns. It
// waits for nothing that other streams have queued; Range.ReadAt does.
func (d *Device) CopyOut(dst []byte, src Ptr) error {
	n := uint64(len(dst))
	pins, raw, err := d.pinned(src, n)
	if err == nil && n > 0 {
		err = raw.CopyOut(dst, src)
		pins.unpin()
	}
	return d.fail("copy out", src, n, err)
}

// pinned pins [p, p+n) for a copy on the library's own stream.
func (d *Device) pinned(p Ptr, n uint64) (pins pinned, raw driver.Device, err error) {
	if raw, err = d.raw(); err != nil {
		return pins, nil, err
	}
	if p+Ptr(n) < p {
		return pins, nil, fmt.Errorf("%w: the addresses overflow", ErrBounds)
	}
	pins, err = d.pin(p, n, 0, 0)
	return pins, raw, err
}
