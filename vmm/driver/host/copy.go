//go:build linux

package host

import (
	"encoding/binary"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// piece is how much a copy moves between two looks at whether its device is
// lost: an unmap waits for one piece at most.
const piece = 1 << 20

// CopyIn copies at once if nothing is queued on the CopyStream, else in turn.
func (v *device) CopyIn(dst driver.Ptr, src []byte) error {
	const verb = "CopyIn"
	n := uint64(len(src))
	o := &op{spans: [2]span{{uint64(dst), uint64(dst) + n, driver.AccessReadWrite}}}
	return v.now(verb, n, o, func() {
		o.run = func(c *context) bool { return c.move(bytesAt(uint64(dst), n), src) }
		if n < writeFrom {
			return
		}
		if fresh := v.context.d.extents(uint64(dst), n); fresh != nil {
			o.run = func(c *context) (whole bool) {
				whole, o.err = c.write(fresh, src)
				return whole
			}
		}
	})
}

// CopyOut is CopyIn the other way.
func (v *device) CopyOut(dst []byte, src driver.Ptr) error {
	n := uint64(len(dst))
	o := &op{spans: [2]span{{uint64(src), uint64(src) + n, driver.AccessRead}}}
	return v.now("CopyOut", n, o, func() {
		o.run = func(c *context) bool { return c.move(dst, bytesAt(uint64(src), n)) }
	})
}

// Copy queues a copy. Overlapping spans are copied from the front.
func (v *device) Copy(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	o := &op{run: func(c *context) bool {
		return n == 0 || c.move(bytesAt(uint64(dst), n), bytesAt(uint64(src), n))
	}}
	if n > 0 {
		o.spans = [2]span{
			{uint64(dst), uint64(dst) + n, driver.AccessReadWrite},
			{uint64(src), uint64(src) + n, driver.AccessRead},
		}
	}
	return v.queue("Copy", s, o)
}

// Fill queues n elements of pattern.
func (v *device) Fill(dst driver.Ptr, pattern uint32, width int, n uint64, s driver.Stream) error {
	const verb = "Fill"
	if err := v.enter(verb); err != nil {
		return err
	}
	w := uint64(width)
	switch {
	case width != 1 && width != 2 && width != 4:
		return rule(verb, driver.ErrInvalid, "elements of %d bytes", width)
	case uint64(dst)%w != 0:
		return rule(verb, driver.ErrInvalid, "address %v is no multiple of %d", dst, width)
	case n > ^uint64(0)/w:
		return rule(verb, driver.ErrInvalid, "%d elements of %d bytes", n, width)
	}
	o := &op{run: func(c *context) bool {
		return n == 0 || c.fill(bytesAt(uint64(dst), n*w), pattern, width)
	}}
	if n > 0 {
		o.spans[0] = span{uint64(dst), uint64(dst) + n*w, driver.AccessReadWrite}
	}
	return v.queue(verb, s, o)
}

// queue checks what an op uses and queues it, with nothing in between that
// could take the memory away.
func (v *device) queue(verb string, s driver.Stream, o *op) error {
	if err := v.enter(verb); err != nil {
		return err
	}
	d := v.context.d
	d.mem.RLock()
	defer d.mem.RUnlock()
	if err := v.check(verb, o); err != nil {
		return err
	}
	return v.context.queue(verb, s, o)
}

// check says whether the device may use what the op uses.
func (v *device) check(verb string, o *op) error {
	for _, s := range o.spans {
		if s.need == driver.AccessNone {
			continue
		}
		if err := v.context.d.reach(verb, v.context.u.ordinal, driver.Ptr(s.from), s.to-s.from, s.need); err != nil {
			return err
		}
	}
	return nil
}

// now runs an op on the CopyStream and returns when it has ended. prepare,
// which says what there is to run, is called once the op has passed its check.
func (v *device) now(verb string, n uint64, o *op, prepare func()) error {
	if err := v.enter(verb); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	c := v.context
	d := c.d
	d.mem.RLock()
	if err := v.check(verb, o); err != nil {
		d.mem.RUnlock()
		return err
	}
	prepare()
	d.work.Lock()
	s, err := c.stream(verb, v.own)
	if err == nil && s.capture != nil {
		err = s.capture.destroy(verb) // it ends with a wait for the stream
	}
	if err == nil {
		if o.started = len(s.queue) == 0; o.started {
			s.inline = append(s.inline, o)
			c.busy[s] = struct{}{}
		} else {
			s.push(o)
		}
	}
	d.mem.RUnlock()
	defer d.work.Unlock()
	if err != nil {
		return err
	}
	if o.started {
		d.work.Unlock()
		whole := o.run(c)
		d.work.Lock()
		o.dropped = !whole
		o.end()
		s.inline = slices.DeleteFunc(s.inline, func(x *op) bool { return x == o })
		s.rest()
	} else {
		o.wait(d)
	}
	if o.dropped {
		return c.gone(verb)
	}
	return o.err
}

// move copies in pieces until the context is over.
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

// fill repeats the low width bytes of pattern in pieces.
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
