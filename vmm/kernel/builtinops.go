package kernel

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

// Iota queues m[i] = start + i*step. Integers wrap around; floats are rounded once from
// the exact value in double precision.
func Iota[T Number](b *Builtins, s *vmm.Stream, m Memory, start, step T) error {
	at, n, err := elements(m, sizeOf[T]())
	if err != nil || n == 0 {
		return opErr("iota", err)
	}
	name := typeName[T]()
	switch name { // two's complement
	case "i32":
		name = "u32"
	case "i64":
		name = "u64"
	}
	return opErr("iota", b.launch("cuvmm_iota_"+name, s, tiles(at.Size), Pointer(at), n, start, step))
}

// SumInt is the sum of m's elements, wrapping around in 64 bits.
func SumInt[T int32 | int64](b *Builtins, s *vmm.Stream, m Memory) (int64, error) {
	return reduce[T, int64](b, s, "sum", m)
}

// SumUint is the sum of m's elements, wrapping around in 64 bits.
func SumUint[T uint32 | uint64](b *Builtins, s *vmm.Stream, m Memory) (uint64, error) {
	return reduce[T, uint64](b, s, "sum", m)
}

// SumFloat is the sum of m's elements in double precision. They are added in an order that
// the device, the length and the address determine: the same sum comes out again.
func SumFloat[T float32 | float64](b *Builtins, s *vmm.Stream, m Memory) (float64, error) {
	return reduce[T, float64](b, s, "sum", m)
}

// Min is the least element: NaN if there is one. Of no elements it is vmm.ErrInvalid.
func Min[T Number](b *Builtins, s *vmm.Stream, m Memory) (T, error) {
	return reduce[T, T](b, s, "min", m)
}

// Max is the greatest element: NaN if there is one. Of no elements it is vmm.ErrInvalid.
func Max[T Number](b *Builtins, s *vmm.Stream, m Memory) (T, error) {
	return reduce[T, T](b, s, "max", m)
}

// reduce is a sum, or the least or greatest, of elements of T.
func reduce[T, R Number](b *Builtins, s *vmm.Stream, op string, m Memory) (res R, err error) {
	at, n, err := elements(m, sizeOf[T]())
	if err == nil && n == 0 && op != "sum" {
		err = fmt.Errorf("%w: of no elements", vmm.ErrInvalid)
	}
	if err != nil || n == 0 {
		return 0, opErr(op, err)
	}
	err = b.withScratch(s, func(result vmm.Ptr) error {
		err := b.launch("cuvmm_"+op+"_"+typeName[T](), s, b.few(at.Size),
			Read(Pointer(at)), n, result+scratchPartials, result+scratchTicket, result)
		if err != nil {
			return err
		}
		return s.CopyOut(rawBytes(&res), result)
	})
	return res, opErr(op, err)
}

// Compare is which elements Compact keeps: those that compare so with its value. Several are
// joined by |, and keep what any of them keeps: LessEqual is Less|Equal.
type Compare uint32

// Comparisons. Unordered keeps NaNs, and everything if the value is one.
const (
	Less Compare = 1 << iota
	Equal
	Greater
	Unordered

	LessEqual    = Less | Equal
	GreaterEqual = Greater | Equal
	NotEqual     = Less | Greater | Unordered
)

// Elements that a block of the compacting kernels does at once.
const (
	compactTile32 = builtinThreads * 32
	compactTile64 = builtinThreads * 16
)

// compactTile is one of these, for elements of size bytes.
func compactTile(size uint64) uint64 {
	if size == 8 {
		return compactTile64
	}
	return compactTile32
}

// Compact appends the elements of src that compare so with value, in any order, and
// returns how many. The range behind the cursor grows as it must. src must not overlap it.
func Compact[T Number](b *Builtins, s *vmm.Stream, c *Cursor, src Memory, cmp Compare, value T) (uint64, error) {
	return b.compact(s, c, src, sizeOf[T](), func(at fixed, n uint64, grid Config) error {
		return b.launch("cuvmm_compact_"+typeName[T](), s, grid, c, Read(Pointer(at)), n, value, uint32(cmp))
	})
}

// CompactMask appends the elements of src, of 4 or 8 bytes as the cursor's, whose byte in
// mask is not 0, in any order, and returns how many. It is Compact otherwise.
func (b *Builtins) CompactMask(s *vmm.Stream, c *Cursor, src, mask Memory) (uint64, error) {
	flags, m, err := elements(asBytes{mask}, 1)
	if err != nil {
		return 0, opErr("compact", err)
	}
	if c == nil || c.elem != 4 && c.elem != 8 {
		return 0, fmt.Errorf("compact: %w: elements of neither 4 nor 8 bytes", vmm.ErrInvalid)
	}
	return b.compact(s, c, src, c.elem, func(at fixed, n uint64, grid Config) error {
		if m < n {
			return fmt.Errorf("%w: a mask of %d bytes for %d elements", vmm.ErrInvalid, m, n)
		}
		return b.launch(fmt.Sprintf("cuvmm_compact_mask_%d", 8*c.elem), s, grid, c, Read(Pointer(at)), Read(Pointer(flags)), n)
	})
}

// compact has launch compact src, of elements of size bytes, tile by tile.
func (b *Builtins) compact(s *vmm.Stream, c *Cursor, src Memory, size uint64, launch func(fixed, uint64, Config) error) (uint64, error) {
	at, n, err := elements(src, size)
	if err == nil && (c == nil || c.elem != size) {
		err = fmt.Errorf("%w: the cursor's elements do not have %d bytes", vmm.ErrInvalid, size)
	}
	if err != nil || n == 0 {
		return 0, opErr("compact", err)
	}
	tile := compactTile(size)
	return c.Append(s, (n+tile-1)/tile, func(items uint64) error {
		return launch(at, n, Over(items*builtinThreads, builtinThreads))
	})
}

// Gather copies rows of row bytes: row i of dst is row idx[i] of src. It copies as many as
// idx has elements, of 4 or 8 bytes; dst must have at least so many. Rows lie as far apart
// as in a growable.Rows or a Vector. If an index is beyond src's rows, that row of dst
// stays as it is, and Gather returns vmm.ErrBounds with the number of such rows. row 0 is a
// whole row of dst. The two must not overlap.
func (b *Builtins) Gather(s *vmm.Stream, dst, src, idx Memory, row uint64) error {
	return opErr("gather", b.moveRows(s, "gather", dst, src, idx, row))
}

// Scatter is Gather the other way: row idx[i] of dst is row i of src. If two indices are the
// same, the row may be of both in parts.
func (b *Builtins) Scatter(s *vmm.Stream, dst, src, idx Memory, row uint64) error {
	return opErr("scatter", b.moveRows(s, "scatter", dst, src, idx, row))
}

func (b *Builtins) moveRows(s *vmm.Stream, op string, dst, src, idx Memory, row uint64) error {
	to, from, by := argOf(dst), argOf(src), argOf(idx)
	if row == 0 {
		row = to.Stride
	}
	// direct has a row for each index, indexed is where the indices point.
	direct, indexed := to, from
	if op == "scatter" {
		direct, indexed = from, to
	}
	switch {
	case to.Addr == 0 || from.Addr == 0 || by.Addr == 0:
		return fmt.Errorf("%w: no memory", vmm.ErrInvalid)
	case by.Stride != 4 && by.Stride != 8:
		return fmt.Errorf("%w: indices of %d bytes, neither 4 nor 8", vmm.ErrInvalid, by.Stride)
	case row > to.Stride || row > from.Stride:
		return fmt.Errorf("%w: rows of %d bytes, %d and %d bytes apart", vmm.ErrInvalid, row, to.Stride, from.Stride)
	case direct.Count < by.Count:
		return fmt.Errorf("%w: %d indices for %d rows", vmm.ErrBounds, by.Count, direct.Count)
	case by.Count == 0:
		return nil
	}
	// The kernels move units of 1, 4, 8 or 16 bytes: the widest that everything is a multiple of.
	unit := uint64(16)
	for _, n := range []uint64{row, to.Stride, from.Stride, uint64(to.Addr), uint64(from.Addr)} {
		for n%unit != 0 {
			unit /= 2
		}
	}
	if unit == 2 {
		unit = 1
	}
	// As many threads for a row as the kernels take.
	threads := uint64(1)
	for threads < row/unit && threads < builtinThreads {
		threads *= 2
	}
	grid := Over(by.Count*threads, builtinThreads)
	name := fmt.Sprintf("cuvmm_%s_%d_u%d", op, unit, 8*by.Stride)
	return b.withScratch(s, func(result vmm.Ptr) error {
		var bad uint64
		if err := s.CopyIn(result, rawBytes(&bad)); err != nil {
			return err
		}
		if err := b.launch(name, s, grid, Pointer(fixed(to)), Read(Pointer(fixed(from))), Read(Pointer(fixed(by))), by.Count,
			row/unit, to.Stride/unit, from.Stride/unit, indexed.Count, result); err != nil {
			return err
		}
		if err := s.CopyOut(rawBytes(&bad), result); err != nil {
			return err
		}
		if bad > 0 {
			return fmt.Errorf("%w: %d of %d indices are not below %d", vmm.ErrBounds, bad, by.Count, indexed.Count)
		}
		return nil
	})
}

// Copy queues a copy of src to the beginning of dst by the device's processors. It is for
// comparison, and for where the copy engines are busy: vmm.Stream.Copy uses those. The two
// must not overlap.
func (b *Builtins) Copy(s *vmm.Stream, dst, src Memory) error {
	to, size, err := elements(asBytes{dst}, 1)
	if err != nil {
		return opErr("copy", err)
	}
	from, n, err := elements(asBytes{src}, 1)
	if err == nil && n > size {
		err = fmt.Errorf("%w: %d bytes into %d", vmm.ErrBounds, n, size)
	}
	if err != nil || n == 0 {
		return opErr("copy", err)
	}
	return opErr("copy", b.launch("cuvmm_copy", s, tiles(n), Pointer(to), Read(Pointer(from)), n))
}
