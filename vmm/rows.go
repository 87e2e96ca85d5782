package vmm

import (
	"errors"
	"fmt"
	"io"
	"math/bits"

	"github.com/cuvmm/cuvmm/internal/prefix"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Pitch is the number of bytes from one row to the next that suits the device, for rows
// of rowBytes: at least rowBytes, and what cuMemAllocPitch would choose. A driver that
// prefers none returns rowBytes. It makes the device's context if there is none yet.
func (d *Device) Pitch(rowBytes uint64) (uint64, error) {
	n, err := d.pitch(rowBytes)
	return n, d.fail("choose pitch", 0, rowBytes, err)
}

func (d *Device) pitch(rowBytes uint64) (uint64, error) {
	o, err := d.ensureOpen()
	if err != nil {
		return 0, err
	}
	if rowBytes == 0 {
		return 0, fmt.Errorf("%w: rows of 0 bytes", ErrInvalid)
	}
	if c, ok := o.Device.(driver.Copier2D); ok {
		if n, err := c.Pitch(rowBytes); !errors.Is(err, ErrNotSupported) {
			return n, err
		}
	}
	return rowBytes, nil
}

// Copy2D queues a copy of that many rows of width bytes each: only them, and not what
// lies between them on either side. Width must be at most each pitch, else it returns
// ErrInvalid. Either side is as for Copy. All memory from the first row to the end of
// the last must be mapped and accessible, the padding included. After an error of the
// driver some rows may be copied.
func (s *Stream) Copy2D(dst, src PitchedPtr, width, rows uint64) error {
	to, ok := dst.Extent(width, rows)
	from, also := src.Extent(width, rows)
	return s.fail("copy rows", dst.Ptr, to, s.with(func(o *openDevice) error {
		if !ok || !also {
			return fmt.Errorf("%w: %d rows of %d bytes from %v to %v", ErrInvalid, rows, width, src, dst)
		}
		p, err := s.dev.lockSpans(s, Span{dst.Ptr, to, AccessReadWrite}, Span{src.Ptr, from, AccessRead})
		if err != nil || to == 0 {
			return err
		}
		defer p.unlock()
		return copyRows(o.Device, inRows(dst, width), inRows(src, width), width*rows, s.queue)
	}))
}

// AppendRows is Append of rows: p has rows of width bytes one behind the other, and
// each is written pitch bytes behind the one before. Len moves by pitch for each row.
// What lies between the rows is not written: with RangeOptions.Zero it is zeros, else it
// may be what an earlier range of the Device left. If p is no whole rows, or the pitch is
// below the width, it returns ErrInvalid.
func (g *Range) AppendRows(p []byte, width, pitch uint64) error {
	size, err := sizeOfRows(p, width, pitch)
	if err != nil {
		if dead := g.live(); dead != nil {
			err = dead
		}
		return g.fail("append rows", g.Len(), uint64(len(p)), err)
	}
	return g.appendRows("append rows", p, size, width, pitch)
}

// ReadRowsAt is ReadAt of rows as AppendRows writes them, the first at off: p takes
// rows of width bytes, one behind the other. It returns how many bytes it copied, in
// whole rows. If fewer rows than p takes lie below Len, each with its padding, it also
// returns io.EOF.
func (g *Range) ReadRowsAt(p []byte, off int64, width, pitch uint64) (n int, err error) {
	if err = checkRows(p, width, pitch); err == nil || g.live() != nil {
		n, err = g.readAt(p, off, max(width, 1), max(pitch, 1))
	}
	if errors.Is(err, io.EOF) {
		return n, io.EOF
	}
	return n, g.fail("read rows", uint64(max(off, 0)), uint64(len(p)), err)
}

// WriteRowsAt is WriteAt of rows as AppendRows writes them, the first at off. All of
// them, each with its padding, must lie below Len, else it returns ErrBounds and
// writes nothing. It returns how many bytes of p it wrote.
func (g *Range) WriteRowsAt(p []byte, off int64, width, pitch uint64) (n int, err error) {
	size, err := sizeOfRows(p, width, pitch)
	if errors.Is(err, ErrFull) {
		err = fmt.Errorf("%w: %d rows with a pitch of %d bytes", ErrBounds, uint64(len(p))/width, pitch)
	}
	if err == nil || g.live() != nil {
		n, err = g.writeAt(p, off, size, max(width, 1), max(pitch, 1))
	}
	return n, g.fail("write rows", uint64(max(off, 0)), uint64(len(p)), err)
}

// checkRows is nil if p is whole rows of width bytes that do not overlap.
func checkRows(p []byte, width, pitch uint64) error {
	switch {
	case width == 0 || pitch < width:
		return fmt.Errorf("%w: a pitch of %d bytes for rows of %d", ErrInvalid, pitch, width)
	case uint64(len(p))%width != 0:
		return fmt.Errorf("%w: %d bytes are no whole rows of %d", ErrInvalid, len(p), width)
	}
	return nil
}

// sizeOfRows is how many bytes the rows in p take with their padding.
func sizeOfRows(p []byte, width, pitch uint64) (uint64, error) {
	if err := checkRows(p, width, pitch); err != nil {
		return 0, err
	}
	over, size := bits.Mul64(uint64(len(p))/width, pitch)
	if over != 0 {
		return 0, fmt.Errorf("%w: %d rows with a pitch of %d bytes are more than 2^64-1", ErrFull, uint64(len(p))/width, pitch)
	}
	return size, nil
}

// rowsBelow is how many of n bytes of rows, the first at off, lie below have, and io.EOF
// if not all do. off is not negative.
func rowsBelow(n int, off int64, have, width, pitch uint64) (int, error) {
	if pitch == width && width == 1 {
		return prefix.Part(n, off, have)
	}
	left := have - min(have, uint64(off))
	return prefix.Part(n, 0, left/pitch*width)
}

// rows is where bytes lie in memory: width of them at a time, pitch bytes apart.
type rows struct {
	ptr          Ptr
	width, pitch uint64
}

// flat is bytes one behind the other.
func flat(p Ptr) rows { return rows{p, 1, 1} }

func inRows(p PitchedPtr, width uint64) rows { return rows{p.Ptr, width, p.Pitch} }

func (r rows) pitched() PitchedPtr { return PitchedPtr{Ptr: r.ptr, Pitch: r.pitch} }

// isFlat says whether the bytes lie one behind the other.
func (r rows) isFlat() bool { return r.width == r.pitch }

// first is the first n bytes: those of one row are flat.
func (r rows) first(n uint64) rows {
	if n <= r.width || r.isFlat() {
		return flat(r.ptr)
	}
	return r
}

// from is the rows without their first n bytes, which are whole rows.
func (r rows) from(n uint64) rows {
	if r.isFlat() {
		r.ptr += Ptr(n)
	} else {
		r.ptr += Ptr(n / r.width * r.pitch)
	}
	return r
}

// each calls f for each row of n bytes, up to the first error.
func (r rows) each(n uint64, f func(off uint64, row rows) error) error {
	for off := uint64(0); off < n; off += r.width {
		if err := f(off, flat(r.from(off).ptr)); err != nil {
			return err
		}
	}
	return nil
}

// copyInNow copies rows by the driver's own copy of host memory: row by row where the
// driver has none of rows.
func (o *openDevice) copyInNow(dst rows, src []byte) error {
	n := uint64(len(src))
	if dst.isFlat() {
		return o.CopyIn(dst.ptr, src)
	}
	if c, ok := o.Device.(driver.Copier2D); ok {
		if err := c.CopyIn2D(dst.pitched(), src, dst.width); !errors.Is(err, ErrNotSupported) {
			return err
		}
	}
	return dst.each(n, func(off uint64, row rows) error { return o.CopyIn(row.ptr, src[off:off+dst.width]) })
}

// copyOutNow is copyInNow the other way.
func (o *openDevice) copyOutNow(dst []byte, src rows) error {
	n := uint64(len(dst))
	if src.isFlat() {
		return o.CopyOut(dst, src.ptr)
	}
	if c, ok := o.Device.(driver.Copier2D); ok {
		if err := c.CopyOut2D(dst, src.pitched(), src.width); !errors.Is(err, ErrNotSupported) {
			return err
		}
	}
	return src.each(n, func(off uint64, row rows) error { return o.CopyOut(dst[off:off+src.width], row.ptr) })
}

// copyRows queues a copy of n bytes between rows of one width, or flat memory. After an
// error some of it may be queued.
func copyRows(raw driver.Device, dst, src rows, n uint64, queue driver.Stream) error {
	if dst, src = dst.first(n), src.first(n); dst.isFlat() && src.isFlat() {
		return raw.Copy(dst.ptr, src.ptr, n, queue)
	}
	width := max(dst.width, src.width) // one side may be flat
	dst, src = dst.of(width), src.of(width)
	if c, ok := raw.(driver.Copier2D); ok {
		err := c.Copy2D(dst.pitched(), src.pitched(), width, n/width, queue)
		if !errors.Is(err, ErrNotSupported) {
			return err
		}
	}
	return dst.each(n, func(off uint64, row rows) error { return raw.Copy(row.ptr, src.from(off).ptr, width, queue) })
}

// of is flat memory as rows of that width; rows as they are.
func (r rows) of(width uint64) rows {
	if r.isFlat() {
		r.width, r.pitch = width, width
	}
	return r
}

// stagedFrom is from how many bytes on a copy is staged, and by how many lanes at least,
// where that of flat bytes needs fewest.
func (r rows) stagedFrom(fewest int) (from uint64, lanes int) {
	if r.isFlat() || r.width%evenWidth == 0 || r.width >= wideRow {
		return stageFrom, fewest
	}
	return stageRowsFrom, 1
}

// whole is n less what is no whole row, but at least one row.
func (r rows) whole(n uint64) uint64 {
	if r.isFlat() {
		return n
	}
	return max(n-n%r.width, r.width)
}
