package growable

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"math/bits"

	"github.com/cuvmm/cuvmm/vmm"
)

// counted is a Range counted in things of one size: the elements of a Vector,
// the rows of Rows. Its zero value is that of a nil one.
type counted struct {
	r    *vmm.Range
	stride uint64 // bytes from one thing to the next
	noun string // "elements", "rows"
}

// atMost is n things of unit bytes as the most bytes of a Range; n = 0 leaves
// it to most. Both together must agree.
func maxBytes(n int, unit uint64, what string, most uint64) (uint64, error) {
	if n < 0 {
		return 0, fmt.Errorf("%w: at most %d %s", vmm.ErrInvalid, n, what)
	}
	if n == 0 {
		return most, nil
	}
	over, size := bits.Mul64(uint64(n), unit)
	if over != 0 || most != 0 && most != size {
		return 0, fmt.Errorf("%w: %d %s of %d bytes in at most %d bytes", vmm.ErrInvalid, n, what, unit, most)
	}
	return size, nil
}

// count is how many whole things n bytes are.
func (c counted) count(n uint64) int {
	if c.r == nil {
		return 0
	}
	return int(n / c.stride)
}

func (c counted) length() int { return c.count(c.r.Len()) }

// ptrAt is thing i's address. Outside [0, Cap] it panics as an index does.
func (c counted) ptrAt(i int) vmm.Ptr {
	index(i, c.count(c.r.Cap())+1)
	return c.r.Ptr() + vmm.Ptr(uint64(i)*c.stride)
}

// index panics as a slice of that length would.
func index(i, length int) { _ = make([]struct{}, length)[i] }

// whole is nil if the Range holds whole things, so that one more begins where
// it should.
func (c counted) checkWhole(doing string, n int) error {
	if c.r != nil && c.r.Len()%c.stride != 0 {
		return fmt.Errorf("%s %d elements: %w: the range below ends inside one of its %s", doing, n, vmm.ErrInvalid, c.noun)
	}
	return nil
}

// bytes is n things in bytes; negative counts are refused.
func (c counted) bytes(doing string, n int) (uint64, error) {
	if c.r == nil || n < 0 {
		return 0, fmt.Errorf("%s %d: %w: nothing to work on, or a negative count", doing, n, vmm.ErrInvalid)
	}
	over, size := bits.Mul64(uint64(n), c.stride)
	if over != 0 {
		return 0, fmt.Errorf("%s %d %s of %d bytes: %w", doing, n, c.noun, c.stride, vmm.ErrFull)
	}
	return size, nil
}

// offset is where thing i begins, in bytes.
func (c counted) offset(doing string, i int) (int64, error) {
	if c.r == nil {
		return 0, fmt.Errorf("%s at %d: %w: nothing to work on", doing, i, vmm.ErrInvalid)
	}
	over, off := bits.Mul64(uint64(i), c.stride)
	if i < 0 || over != 0 || int64(off) < 0 {
		return 0, fmt.Errorf("%s at %d of its %s: %w", doing, i, c.noun, vmm.ErrBounds)
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

// blocks reads all things below the length, as it stands at the start, in
// pieces of as many as fit into buf, each of width elements; a nil buf is about
// 1 MiB. readAt says how many things it has read.
func blocks[T any](c counted, width int, buf []T, readAt func([]T, int) (int, error)) iter.Seq2[[]T, error] {
	return func(yield func([]T, error) bool) {
		end := c.length()
		if len(buf) == 0 && end > 0 {
			buf = make([]T, width*int(max(1, min(uint64(end), 1<<20/c.stride))))
		}
		most := len(buf) / max(width, 1)
		if most == 0 && end > 0 {
			yield(nil, fmt.Errorf("read into %d elements: %w: a row has %d", len(buf), vmm.ErrInvalid, width))
			return
		}
		for i := 0; i < end; {
			n, err := readAt(buf[:width*min(most, end-i)], i)
			if errors.Is(err, io.EOF) {
				end = i + n // Len has moved down meanwhile
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

// host is the elements below the length, where the CPU can address them.
func host[T any](r *vmm.Range) ([]T, error) {
	b, err := r.Host()
	if err != nil {
		return nil, err
	}
	return elements[T](b), nil
}
