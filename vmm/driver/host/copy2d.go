//go:build linux

package host

import (
	"math"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// pitchUnit is what Pitch rounds up to: a cache line, so that no two rows share one.
const pitchUnit = 64

// Pitch is rowBytes rounded up to whole cache lines.
func (v *device) Pitch(rowBytes uint64) (uint64, error) {
	const verb = "Pitch"
	if err := v.checkOpen(verb); err != nil {
		return 0, err
	}
	if rowBytes == 0 || rowBytes > math.MaxInt64-pitchUnit {
		return 0, refuse(verb, driver.ErrInvalid, "rows of %d bytes", rowBytes)
	}
	return (rowBytes + pitchUnit - 1) &^ (pitchUnit - 1), nil
}

// CopyIn2D is CopyIn of rows.
func (v *device) CopyIn2D(dst driver.PitchedPtr, src []byte, width uint64) error {
	const verb = "CopyIn2D"
	n, err := v.checkRows(verb, dst, uint64(len(src)), width)
	if err != nil {
		return err
	}
	p := uint64(dst.Ptr)
	o := &op{}
	o.use(dst.Ptr, n, driver.AccessReadWrite)
	return v.runNow(verb, n, o, func() {
		var fresh []extent
		if len(src) >= minWrite {
			fresh = v.context.d.untouchedRows(dst, width, n)
		}
		o.run = func(c *context) bool {
			whole, err := c.allocate(fresh)
			if o.err = err; !whole || err != nil {
				return whole
			}
			return c.moveRows(bytesAt(p, n), dst.Pitch, src, width, width)
		}
	})
}

// CopyOut2D is CopyIn2D the other way.
func (v *device) CopyOut2D(dst []byte, src driver.PitchedPtr, width uint64) error {
	const verb = "CopyOut2D"
	n, err := v.checkRows(verb, src, uint64(len(dst)), width)
	if err != nil {
		return err
	}
	p := uint64(src.Ptr)
	o := &op{}
	o.use(src.Ptr, n, driver.AccessRead)
	return v.runNow(verb, n, o, func() {
		o.run = func(c *context) bool { return c.moveRows(dst, width, bytesAt(p, n), src.Pitch, width) }
	})
}

// Copy2D queues a copy of rows. Overlapping spans are copied from the front.
func (v *device) Copy2D(dst, src driver.PitchedPtr, width, rows uint64, s driver.Stream) error {
	const verb = "Copy2D"
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	to, ok := dst.Extent(width, rows)
	from, also := src.Extent(width, rows)
	if !ok || !also {
		return refuse(verb, driver.ErrInvalid, "%d rows of %d bytes from %v to %v", rows, width, src, dst)
	}
	o := &op{work: work{kind: copyingRows, run: func(c *context) bool {
		return to == 0 || c.moveRows(bytesAt(uint64(dst.Ptr), to), dst.Pitch, bytesAt(uint64(src.Ptr), from), src.Pitch, width)
	}}}
	o.use(dst.Ptr, to, driver.AccessReadWrite)
	o.use(src.Ptr, from, driver.AccessRead)
	return v.queue(verb, s, o)
}

// checkRows returns the extent of rows that are n bytes in all.
func (v *device) checkRows(verb string, p driver.PitchedPtr, n, width uint64) (uint64, error) {
	if err := v.checkOpen(verb); err != nil || n == 0 {
		return 0, err
	}
	if width == 0 || n%width != 0 {
		return 0, refuse(verb, driver.ErrInvalid, "%d bytes are no whole rows of %d", n, width)
	}
	extent, ok := p.Extent(width, n/width)
	if !ok {
		return 0, refuse(verb, driver.ErrInvalid, "%d rows of %d bytes at %v", n/width, width, p)
	}
	return extent, nil
}

// moveRows copies rows of that width, and returns false if the context is stopped
// meanwhile. dst and src end with the last row.
func (c *context) moveRows(dst []byte, dstPitch uint64, src []byte, srcPitch, width uint64) bool {
	// A check for each row would cost more than a narrow row.
	batch := max(1, piece/width)
	for i := uint64(0); ; i++ {
		if i%batch == 0 && c.stopped() {
			return false
		}
		if width > piece {
			if !c.move(dst[:width], src[:width]) {
				return false
			}
		} else {
			copy(dst[:width], src[:width])
		}
		if uint64(len(dst)) == width || uint64(len(src)) == width {
			return true
		}
		dst, src = dst[dstPitch:], src[srcPitch:]
	}
}

// untouchedRows is untouchedExtents of the rows in [p, p+n). With a large pitch it
// leaves out what is between the rows.
func (d *Driver) untouchedRows(p driver.PitchedPtr, width, n uint64) (all []extent) {
	if p.Pitch <= minWrite {
		return d.untouchedExtents(uint64(p.Ptr), n)
	}
	if width < minWrite {
		return nil
	}
	for at := uint64(0); at < n; at += p.Pitch {
		all = append(all, d.untouchedExtents(uint64(p.Ptr)+at, width)...)
	}
	return all
}

// allocate has the system provide the pages of extents that are untouched. Where it
// has no page left, that returns an error, and a store to the mapping is SIGBUS.
func (c *context) allocate(all []extent) (whole bool, err error) {
	for _, x := range all {
		for at := min(max(x.memory.touched.Load(), x.off)-x.off, x.n); at < x.n; at += piece {
			if c.stopped() {
				return false, nil
			}
			off, n := int64(x.memory.part.off+x.off+at), int64(min(piece, x.n-at))
			err := unix.Fallocate(x.memory.fd, unix.FALLOC_FL_KEEP_SIZE, off, n)
			for err == unix.EINTR {
				err = unix.Fallocate(x.memory.fd, unix.FALLOC_FL_KEEP_SIZE, off, n)
			}
			switch err {
			case nil:
			case unix.EOPNOTSUPP, unix.ENOSYS, unix.EPERM: // pages come with the stores, as for small copies
			default:
				return true, c.d.fail("fallocate", driver.ErrOutOfMemory, err)
			}
		}
		x.memory.touch(x.off + x.n)
	}
	return true, nil
}
