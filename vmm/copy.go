package vmm

import "fmt"

// pinned is the reservations that a copy touches: memory in them does not go
// before the copy has been queued, or has ended.
type pinned [2]struct {
	r     *Reservation
	epoch uint64
}

// span is memory that a copy reads or writes.
type span struct {
	p    Ptr
	n    uint64
	need Access
}

// pin takes the reservations that two spans lie in and checks that they are
// mapped there, that this device's access is not about to go, and that their UsedBy
// has not named other streams than on, which is nil for the library's own. Memory
// that no reservation knows (plain, pinned) is the driver's to judge.
func (d *Device) pin(on *Stream, spans ...span) (p pinned, err error) {
	for i, s := range spans {
		if s.n == 0 {
			continue
		}
		r := d.port.sys.find(s.p)
		if r == nil {
			continue
		}
		p[i].r, p[i].epoch = r, r.copies.begin()
		if err = r.covers(s, d.port, on); err != nil {
			p.unpin()
			return pinned{}, err
		}
	}
	return p, nil
}

// unpin undoes pin.
func (p *pinned) unpin() {
	for _, x := range p {
		if x.r != nil {
			x.r.copies.end(x.epoch)
		}
	}
}

// covers is nil if the device may use the span, as far as r knows, on that
// stream. The caller has begun a copy.
func (r *Reservation) covers(s span, by *port, on *Stream) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.live(); err != nil {
		return err
	}
	if err := r.blockedFor(by, s.need); err != nil {
		return err
	}
	if on != nil {
		if err := r.serves(on); err != nil {
			return err
		}
	}
	return r.readable(uint64(s.p-r.ptr), s.n)
}

// blockedFor is ErrBusy while the device's access may drop below need. It needs r.mu.
func (r *Reservation) blockedFor(by *port, need Access) error {
	for _, b := range r.copyBlocks {
		if b.port == by && need > b.left {
			return fmt.Errorf("%w: access of device %d is being changed", ErrBusy, by.n)
		}
	}
	return nil
}

// serves is nil if fences wait for the stream. It needs r.mu.
func (r *Reservation) serves(s *Stream) error {
	if _, named := r.named[s]; r.promised && !named {
		return fmt.Errorf("%w: Use has named other streams", ErrInvalid)
	}
	return nil
}

// CopyIn copies src to the device and has finished when it returns. It waits
// for nothing that other streams have queued. Where the CPU cannot address the
// memory, large copies go through pinned memory of the library's own, as do
// those of Range.
func (d *Device) CopyIn(dst Ptr, src []byte) error {
	n := uint64(len(src))
	pins, raw, err := d.pinned(span{dst, n, AccessReadWrite})
	if err == nil && n > 0 {
		err = raw.copyIn(dst, src)
		pins.unpin()
	}
	return d.fail("copy in", dst, n, err)
}

// CopyOut copies device memory to dst and has finished when it returns. It
// waits for nothing that other streams have queued; Range.ReadAt does.
func (d *Device) CopyOut(dst []byte, src Ptr) error {
	n := uint64(len(dst))
	pins, raw, err := d.pinned(span{src, n, AccessRead})
	if err == nil && n > 0 {
		err = raw.copyOut(dst, src)
		pins.unpin()
	}
	return d.fail("copy out", src, n, err)
}

// pinned pins s for a copy on the library's own stream.
func (d *Device) pinned(s span) (pins pinned, raw *openDevice, err error) {
	if raw, err = d.raw(); err != nil {
		return pins, nil, err
	}
	if s.p+Ptr(s.n) < s.p {
		return pins, nil, fmt.Errorf("%w: the addresses overflow", ErrBounds)
	}
	pins, err = d.pin(nil, s)
	return pins, raw, err
}
