//go:build linux

package host

import (
	"encoding/binary"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// piece is how much a copy moves before it checks again whether the context is
// stopped. So an unmap waits for one piece at most.
const piece = 1 << 20

// CopyIn copies at once if nothing is queued on the CopyStream, else in its order.
func (v *device) CopyIn(dst driver.Ptr, src []byte) error {
	const verb = "CopyIn"
	n := uint64(len(src))
	o := newCopy()
	o.use(dst, n, driver.AccessReadWrite)
	return v.runNow(verb, n, o, func() {
		o.dst, o.src = bytesAt(uint64(dst), n), src
		if n >= minWrite {
			o.writeFresh(v.context.d.untouchedExtents(uint64(dst), n))
		}
	})
}

// writeFresh has the copy write to files, if there are any, that lie where it would touch memory.
func (o *op) writeFresh(fresh []extent) {
	if fresh != nil {
		o.run = func(c *context) (whole bool) {
			whole, o.err = c.write(fresh, o.src)
			return whole
		}
	}
}

// CopyOut is CopyIn the other way.
func (v *device) CopyOut(dst []byte, src driver.Ptr) error {
	n := uint64(len(dst))
	o := newCopy()
	o.use(src, n, driver.AccessRead)
	return v.runNow("CopyOut", n, o, func() { o.dst, o.src = dst, bytesAt(uint64(src), n) })
}

// Copy queues a copy. Overlapping spans are copied from the front.
func (v *device) Copy(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	return v.queue("Copy", s, copyOp(copying, dst, src, n))
}

// copyOp is a copy from the front.
func copyOp(kind kind, dst, src driver.Ptr, n uint64) *op {
	o := &op{work: work{kind: kind, run: func(c *context) bool {
		return n == 0 || c.move(bytesAt(uint64(dst), n), bytesAt(uint64(src), n))
	}}}
	o.use(dst, n, driver.AccessReadWrite)
	o.use(src, n, driver.AccessRead)
	return o
}

// Fill queues n elements of pattern.
func (v *device) Fill(dst driver.Ptr, pattern uint32, width int, n uint64, s driver.Stream) error {
	const verb = "Fill"
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	w := uint64(width)
	switch {
	case width != 1 && width != 2 && width != 4:
		return refuse(verb, driver.ErrInvalid, "elements of %d bytes", width)
	case uint64(dst)%w != 0:
		return refuse(verb, driver.ErrInvalid, "address %v is no multiple of %d", dst, width)
	case n > ^uint64(0)/w:
		return refuse(verb, driver.ErrInvalid, "%d elements of %d bytes", n, width)
	}
	o := &op{work: work{kind: filling, run: func(c *context) bool {
		return n == 0 || c.fill(bytesAt(uint64(dst), n*w), pattern, width)
	}}}
	o.use(dst, n*w, driver.AccessReadWrite)
	return v.queue(verb, s, o)
}

// queue checks the memory of an op and queues the op. memMu is held for both, so
// that the memory cannot be unmapped in between.
func (v *device) queue(verb string, s driver.Stream, o *op) error {
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	d := v.context.d
	d.memMu.RLock()
	defer d.memMu.RUnlock()
	o.context = v.context
	if err := o.check(verb); err != nil {
		return err
	}
	return v.context.queue(verb, s, o)
}

// check checks that the op's device may use its memory. The caller holds memMu.
func (o *op) check(verb string) error {
	d, dev := o.context.d, o.context.state.ordinal
	o.spans = o.memory
	for i, s := range o.memory {
		dev := dev
		if s.owner != nil {
			dev = s.owner.ordinal
		}
		if err := d.checkAccess(verb, dev, driver.Ptr(s.from), s.to-s.from, s.need); err != nil {
			return err
		}
		if s.owner != nil && !d.liesOn(s.owner, s.from, s.to-s.from) {
			return refuse(verb, driver.ErrInvalid, "the memory at %#x is not of host:%d", s.from, dev)
		}
		if s.open {
			if &o.spans[0] == &o.memory[0] {
				o.spans = slices.Clone(o.memory) // how far it goes may differ from one op to the next
			}
			o.spans[i].to = d.accessibleUpTo(dev, s)
		}
	}
	return nil
}

// runNow runs an op on the CopyStream and returns when it has ended. It calls
// prepare, which sets what it does, when the op has passed its check. The op is runNow's.
func (v *device) runNow(verb string, n uint64, o *op, prepare func()) error {
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	c := v.context
	d := c.d
	o.context = c
	d.memMu.RLock()
	if err := o.check(verb); err != nil {
		d.memMu.RUnlock()
		return err
	}
	prepare()
	// Listed under both locks: an unmap then either is seen by the check above, or
	// sees this op.
	d.workMu.Lock()
	s, err := c.stream(verb, v.copyStream)
	if err == nil && s.capture != nil {
		err = s.capture.destroy(verb) // because the copy ends with a wait for the stream
	}
	if err == nil {
		if o.started = len(s.queue) == 0; o.started {
			s.inline = append(s.inline, o)
			c.busy[s] = struct{}{}
		} else {
			s.push(o)
		}
	}
	d.memMu.RUnlock()
	defer d.workMu.Unlock()
	if err != nil {
		return err
	}
	var dropped bool
	// In this goroutine if the stream was empty, which spares a switch to another.
	if o.started {
		d.workMu.Unlock()
		whole := o.do(c)
		d.workMu.Lock()
		o.dropped = !whole
		o.end()
		s.inline = slices.DeleteFunc(s.inline, func(x *op) bool { return x == o })
		s.dropIfIdle()
		dropped, err = o.dropped, o.err
		if !o.seen {
			*o = op{}
			spareOps.Put(o)
		}
	} else {
		o.wait(d)
		dropped, err = o.dropped, o.err
	}
	if dropped {
		return c.stoppedError(verb)
	}
	return err
}

// move copies in pieces, and returns false if the context is stopped meanwhile.
func (c *context) move(dst, src []byte) bool {
	for len(dst) > 0 {
		if c.stopped() {
			return false
		}
		n := copy(dst[:min(piece, len(dst))], src)
		dst, src = dst[n:], src[n:]
	}
	return true
}

// fill writes the low width bytes of pattern again and again, in pieces.
func (c *context) fill(dst []byte, pattern uint32, width int) bool {
	for len(dst) > 0 {
		if c.stopped() {
			return false
		}
		b := dst[:min(piece, len(dst))]
		switch width {
		case 1:
			b[0] = byte(pattern)
		case 2:
			binary.NativeEndian.PutUint16(b, uint16(pattern))
		case 4:
			binary.NativeEndian.PutUint32(b, pattern)
		}
		for n := width; n < len(b); n *= 2 {
			copy(b[n:], b[:n])
		}
		dst = dst[len(b):]
	}
	return true
}
