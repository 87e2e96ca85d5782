package growable

import (
	"fmt"
	"iter"
	"math"
	"math/bits"

	"github.com/cuvmm/cuvmm/vmm"
)

// noCopy has go vet find copies of what contains it: a copy of a Vector would close
// the memory of the other.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

var errNothing = fmt.Errorf("%w: a nil or zero value", vmm.ErrInvalid)

// counted is a Source whose length is counted in items of one size: elements, or rows.
// A nil Vector, Rows or reader has a nil counted, and a zero one a zero counted.
type counted struct {
	src    Source
	stride uint64 // bytes from one item to the next
	noun   string // "elements" or "rows"
}

// maxBytes is the maximum of a Range for n items; for n = 0 it is limit. If both
// are set, they must be the same.
func maxBytes(n int, stride uint64, noun string, limit uint64) (uint64, error) {
	if n == 0 {
		return limit, nil
	}
	if n < 0 {
		return 0, fmt.Errorf("%w: a maximum of %d %s: it must not be negative", vmm.ErrInvalid, n, noun)
	}
	over, size := bits.Mul64(uint64(n), stride)
	if over != 0 || size > math.MaxInt64 {
		return 0, fmt.Errorf("%w: at most %d %s of %d bytes each: all of them are more than 2^63-1 bytes", vmm.ErrInvalid, n, noun, stride)
	}
	if limit != 0 && limit != size {
		return 0, fmt.Errorf("%w: at most %d %s are %d bytes, but Range.Max is %d: set one of the two", vmm.ErrInvalid, n, noun, size, limit)
	}
	return size, nil
}

// count is how many whole items n bytes are.
func (c *counted) count(n uint64) int {
	if c == nil || c.stride == 0 {
		return 0
	}
	return int(n / c.stride)
}

func (c *counted) length() int {
	if c == nil || c.src == nil {
		return 0
	}
	return c.count(c.src.Len())
}

// changed is the Source's Changed.
func (c *counted) changed() <-chan struct{} {
	if c == nil || c.src == nil {
		none := make(chan struct{})
		close(none)
		return none
	}
	return c.src.Changed()
}

// index panics if i is no index of a slice of that length.
func index(i, length int) { _ = make([]struct{}, length)[i] }

// ptrAt is the address of item i of r, which is the Source. Outside [0, Cap] it panics
// as an index does.
func (c *counted) ptrAt(r *vmm.Range, i int) vmm.Ptr {
	index(i, c.count(r.Cap())+1)
	if c == nil {
		return 0
	}
	return r.Ptr() + vmm.Ptr(uint64(i)*c.stride)
}

// whole reports whether r, which is the Source, ends behind a whole item: the next one
// begins where it should.
func (c *counted) whole(r *vmm.Range) bool { return r != nil && r.Len()%c.stride == 0 }

// notWhole is the error of an append where whole is false.
func (c *counted) notWhole(n int) error {
	if c == nil || c.src == nil {
		return fmt.Errorf("append %d elements: %w", n, errNothing)
	}
	return fmt.Errorf("append %d elements: %w: the range's length is no whole number of %s", n, vmm.ErrInvalid, c.noun)
}

// bytes is the size of n items; beyond is the error of more than there can be.
func (c *counted) bytes(op string, n int, beyond error) (uint64, error) {
	if c == nil || c.src == nil {
		return 0, fmt.Errorf("%s %d: %w", op, n, errNothing)
	}
	if n < 0 {
		return 0, fmt.Errorf("%s %d %s: %w: 0 is the least", op, n, c.noun, vmm.ErrInvalid)
	}
	over, size := bits.Mul64(uint64(n), c.stride)
	if over != 0 {
		return 0, fmt.Errorf("%s %d %s of %d bytes each: %w: they are more than 2^64-1 bytes", op, n, c.noun, c.stride, beyond)
	}
	return size, nil
}

// offset is the byte at which item i begins.
func (c *counted) offset(op string, i int) (int64, error) {
	if c == nil || c.src == nil {
		return 0, fmt.Errorf("%s at %d: %w", op, i, errNothing)
	}
	over, off := bits.Mul64(uint64(i), c.stride)
	if i < 0 || over != 0 || int64(off) < 0 {
		return 0, c.outside(op, i)
	}
	return int64(off), nil
}

// outside is the error of an index that no item has.
func (c *counted) outside(op string, i int) error {
	return fmt.Errorf("%s at %d: %w: there are %d %s", op, i, vmm.ErrBounds, c.length(), c.noun)
}

// read is the Source's ReadAt, checked.
func (c *counted) read(b []byte, off int64) (int, error) {
	n, err := c.src.ReadAt(b, off)
	if n != len(b) {
		n, err = c.short(n, len(b), err)
	}
	return n, err
}

// short checks what the Source's ReadAt has returned for less than it was asked for. A
// Source may be a caller's own: loops over one that returns too little without an error
// would be endless.
func (c *counted) short(n, of int, err error) (int, error) {
	if n < 0 || n > of || err == nil {
		return 0, fmt.Errorf("%w: %T.ReadAt returned %d of %d bytes, which an io.ReaderAt must not", vmm.ErrInvalid, c.src, n, of)
	}
	return n, err
}

// grow, setLen and truncate are those of r, which is the Source, in items.

func (c *counted) grow(r *vmm.Range, n int) error {
	size, err := c.bytes("grow by", n, vmm.ErrFull)
	if err != nil {
		return err
	}
	return r.Grow(size)
}

func (c *counted) setLen(r *vmm.Range, n int) error {
	size, err := c.bytes("set length to", n, vmm.ErrBounds)
	if err != nil {
		return err
	}
	return r.SetLen(size)
}

var errNoSeq = fmt.Errorf("append a sequence: %w: there is none", vmm.ErrInvalid)

// appendSeq appends what seq yields, in whole items of width elements, and returns how
// many items it has appended.
func appendSeq[T any](c *counted, width int, add func(...T) error, seq iter.Seq[[]T]) (items int, err error) {
	if c == nil || c.src == nil {
		return 0, fmt.Errorf("append a sequence: %w", errNothing)
	}
	full := width * int(max(1, defaultBuffer/c.stride))
	var buf []T
	flush := func() bool {
		if err = add(buf...); err != nil {
			return false
		}
		items, buf = items+len(buf)/width, buf[:0]
		return true
	}
	for s := range seq {
		// What came before a slice that is no whole items is appended nevertheless.
		if len(s)%width != 0 {
			if flush() {
				err = fmt.Errorf("append %d elements: %w: not whole rows of %d", len(s), vmm.ErrInvalid, width)
			}
			return items, err
		}
		if buf = append(buf, s...); len(buf) >= full && !flush() {
			return items, err
		}
	}
	flush()
	return items, err
}

// memoryArg sets m to the whole items as an argument of a kernel; to nothing where the
// source is no memory of package vmm.
func (c *counted) memoryArg(m *vmm.MemoryArg) {
	if m == nil {
		return
	}
	if c != nil {
		if src, ok := c.src.(interface{ MemoryArg(m *vmm.MemoryArg) }); ok {
			src.MemoryArg(m)
			items(m, c.stride)
			return
		}
	}
	*m = vmm.MemoryArg{}
}

// items makes bytes whole items.
func items(m *vmm.MemoryArg, stride uint64) {
	m.Stride = stride
	if stride&(stride-1) == 0 { // a launch is short enough for a division to be seen
		m.Count = m.Size >> bits.TrailingZeros64(stride)
	} else {
		m.Count = m.Size / stride
	}
	m.Size = m.Count * stride
}
