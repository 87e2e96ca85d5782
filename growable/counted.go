package growable

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"math/bits"

	"github.com/cuvmm/cuvmm/vmm"
)

// counted is a Range whose length is counted in items of one size: the elements of
// a Vector, or the rows of Rows. Its zero value is that of a nil Vector or nil Rows.
type counted struct {
	r      *vmm.Range
	stride uint64 // bytes from one item to the next
	noun   string // "elements" or "rows"
}

// maxBytes is the maximum of a Range for n items; for n = 0 it is limit. If both
// are set, they must be the same.
func maxBytes(n int, stride uint64, noun string, limit uint64) (uint64, error) {
	if n < 0 {
		return 0, fmt.Errorf("%w: at most %d %s", vmm.ErrInvalid, n, noun)
	}
	if n == 0 {
		return limit, nil
	}
	over, size := bits.Mul64(uint64(n), stride)
	if over != 0 || limit != 0 && limit != size {
		return 0, fmt.Errorf("%w: %d %s of %d bytes in at most %d bytes", vmm.ErrInvalid, n, noun, stride, limit)
	}
	return size, nil
}

// count is how many whole items n bytes are.
func (c counted) count(n uint64) int {
	if c.r == nil {
		return 0
	}
	return int(n / c.stride)
}

func (c counted) length() int { return c.count(c.r.Len()) }

// ptrAt is the address of item i. Outside [0, Cap] it panics as an index does.
func (c counted) ptrAt(i int) vmm.Ptr {
	index(i, c.count(c.r.Cap())+1)
	return c.r.Ptr() + vmm.Ptr(uint64(i)*c.stride)
}

// index panics if i is no index of a slice of that length.
func index(i, length int) { _ = make([]struct{}, length)[i] }

// checkWhole returns an error if the Range ends inside an item: the next one would
// not begin where it should.
func (c counted) checkWhole(op string, n int) error {
	if c.r != nil && c.r.Len()%c.stride != 0 {
		return fmt.Errorf("%s %d elements: %w: the range below ends inside one of its %s", op, n, vmm.ErrInvalid, c.noun)
	}
	return nil
}

// bytes is the size of n items.
func (c counted) bytes(op string, n int) (uint64, error) {
	if c.r == nil || n < 0 {
		return 0, fmt.Errorf("%s %d: %w: nothing to work on, or a negative count", op, n, vmm.ErrInvalid)
	}
	over, size := bits.Mul64(uint64(n), c.stride)
	if over != 0 {
		return 0, fmt.Errorf("%s %d %s of %d bytes: %w", op, n, c.noun, c.stride, vmm.ErrFull)
	}
	return size, nil
}

// offset is the byte at which item i begins.
func (c counted) offset(op string, i int) (int64, error) {
	if c.r == nil {
		return 0, fmt.Errorf("%s at %d: %w: nothing to work on", op, i, vmm.ErrInvalid)
	}
	over, off := bits.Mul64(uint64(i), c.stride)
	if i < 0 || over != 0 || int64(off) < 0 {
		return 0, fmt.Errorf("%s at %d of its %s: %w", op, i, c.noun, vmm.ErrBounds)
	}
	return int64(off), nil
}

func (c counted) grow(n int) error {
	size, err := c.bytes("grow by", n)
	if err != nil {
		return err
	}
	return c.r.Grow(size)
}

func (c counted) setLen(n int) error {
	size, err := c.bytes("set length to", n)
	if err != nil {
		return err
	}
	return c.r.SetLen(size)
}

// blocks yields all items below the length that c has at the start, as many at a
// time as fit into buf; each has width elements. A nil buf is about 1 MiB. readAt
// returns how many items it has read.
func blocks[T any](c counted, width int, buf []T, readAt func([]T, int) (int, error)) iter.Seq2[[]T, error] {
	return func(yield func([]T, error) bool) {
		end := c.length()
		if len(buf) == 0 && end > 0 {
			buf = make([]T, width*int(max(1, min(uint64(end), 1<<20/c.stride))))
		}
		// A buffer that holds no item would make the loop below endless.
		fits := len(buf) / max(width, 1)
		if fits == 0 && end > 0 {
			yield(nil, fmt.Errorf("read into %d elements: %w: a row has %d", len(buf), vmm.ErrInvalid, width))
			return
		}
		for i := 0; i < end; {
			n, err := readAt(buf[:width*min(fits, end-i)], i)
			if errors.Is(err, io.EOF) {
				end = i + n // the length has gone down meanwhile
			} else if err != nil {
				yield(nil, err)
				return
			}
			if n > 0 && !yield(buf[:width*n], nil) {
				return
			}
			i += n
		}
	}
}

// host returns the elements below the length, if the CPU can address them.
func host[T any](r *vmm.Range) ([]T, error) {
	b, err := r.Host()
	if err != nil {
		return nil, err
	}
	return elements[T](b), nil
}
