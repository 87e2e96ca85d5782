package growable

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"

	"github.com/cuvmm/cuvmm/vmm"
)

// Source is memory that grows, in this process or another: a *vmm.Range, a *shareable.View. It is safe
// for concurrent use.
type Source interface {
	io.ReaderAt
	// Len is how many bytes there are.
	Len() uint64
	// Changed is closed when Len next changes. Once Len cannot change any more, it is closed already.
	Changed() <-chan struct{}
}

// Reader reads a Source as elements of T, as a Vector would be read. It owns nothing:
// there is no Close, and the Source must stay open. Safe for concurrent use.
type Reader[T any] struct {
	_ noCopy
	c counted
}

// NewReader makes a Reader of the elements in src. If src has a method Layout, as a shareable.View has,
// its result must equal LayoutOf[T](); else NewReader returns vmm.ErrInvalid with the difference. If T is
// not plain data, it returns ErrElement.
func NewReader[T any](src Source) (*Reader[T], error) {
	want, err := LayoutOf[T]()
	if err == nil {
		err = checkSource(src, want)
	}
	if err != nil {
		return nil, fmt.Errorf("make reader of %v: %w", reflect.TypeFor[T](), err)
	}
	return &Reader[T]{c: counted{src, want.Pitch, "elements"}}, nil
}

// described is a Source that knows its Layout.
type described interface{ Layout() vmm.Layout }

// checkSource is nil if src can be read as want, which has its pitch from src.
func checkSource(src Source, want vmm.Layout) error {
	if src == nil {
		return fmt.Errorf("%w: no source", vmm.ErrInvalid)
	}
	if d, ok := src.(described); ok {
		if err := d.Layout().Check(want); err != nil {
			return err
		}
	}
	return want.Validate()
}

// base returns the counted Source; nil for a nil Reader.
func (r *Reader[T]) base() *counted {
	if r == nil {
		return nil
	}
	return &r.c
}

// Layout describes the elements, as Vector.Layout does.
func (r *Reader[T]) Layout() vmm.Layout { return layoutOfElements[T]() }

// Len is how many whole elements there are. It may fall if the Source's does.
func (r *Reader[T]) Len() int { return r.base().length() }

// Changed is the Source's: it is closed when Len next changes, or already if Len cannot change any more.
// Call it before Len, so that no change is missed. Only the Source knows whether more can come; see
// View.Err and View.Sealed.
func (r *Reader[T]) Changed() <-chan struct{} { return r.base().changed() }

// At reads element i. Outside [0, Len) it returns vmm.ErrBounds. It does not panic as Vector.At does,
// because another process may remove elements at any time.
func (r *Reader[T]) At(i int) (x T, err error) {
	one := make([]T, 1)
	if _, err = r.ReadAt(one, i); err != nil && errors.Is(err, io.EOF) {
		err = r.base().outside("read", i)
	}
	return one[0], err
}

// ReadAt copies elements from i on to dst. It returns how many it copied, and io.EOF if dst reaches
// beyond Len.
func (r *Reader[T]) ReadAt(dst []T, i int) (int, error) {
	c := r.base()
	off, err := c.offset("read", i)
	if err != nil {
		return 0, err
	}
	b := bytesOf(dst)
	n, err := c.src.ReadAt(b, off)
	if n == len(b) {
		return len(dst), err
	}
	n, err = c.short(n, len(b), err)
	return c.count(uint64(n)), err
}

// Blocks yields all elements below the Len at the start, at most len(buf) at a time.
// buf must hold at least one; a nil buf is about 1 MiB. Each slice is valid until the
// next. If a copy fails, the last pair has the error.
func (r *Reader[T]) Blocks(buf []T) iter.Seq2[[]T, error] {
	return blocks(r.base(), 1, buf, r.ReadAt)
}

// All yields all elements below the Len at the start, one by one. If a copy fails, the
// last pair has the error.
func (r *Reader[T]) All() iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for block, err := range r.Blocks(nil) {
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, x := range block {
				if !yield(x, nil) {
					return
				}
			}
		}
	}
}

// Host returns the elements below Len as a slice, if the Source has a method Host and the CPU can address
// the memory; else it returns vmm.ErrNotSupported. The slice is valid as long as that of the Source's
// Host.
func (r *Reader[T]) Host() ([]T, error) { return host[T](r.base()) }

// blocks yields all items below the length that c has at the start, as many at a
// time as fit into buf; each has width elements. A nil buf is about 1 MiB. readAt
// returns how many items it has read.
func blocks[T any](c *counted, width int, buf []T, readAt func([]T, int) (int, error)) iter.Seq2[[]T, error] {
	return func(yield func([]T, error) bool) {
		end := c.length()
		if end == 0 {
			// There may be a reason: it is closed, for one.
			if _, err := readAt(nil, 0); err != nil {
				yield(nil, err)
			}
			return
		}
		if buf == nil {
			buf = make([]T, width*int(max(1, min(uint64(end), 1<<20/c.stride))))
		}
		// A buffer that holds no item would make the loop below endless.
		fits := len(buf) / width
		if fits == 0 {
			yield(nil, fmt.Errorf("read into %d elements: %w: %d is the least", len(buf), vmm.ErrInvalid, width))
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
func host[T any](c *counted) ([]T, error) {
	if c == nil || c.src == nil {
		return nil, fmt.Errorf("view from the host: %w", errNothing)
	}
	h, ok := c.src.(interface{ Host() ([]byte, error) })
	if !ok {
		return nil, fmt.Errorf("view %T from the host: %w: it has no method Host", c.src, vmm.ErrNotSupported)
	}
	b, err := h.Host()
	if err != nil {
		return nil, err
	}
	return elements[T](b)
}

// MemoryArg sets m to the elements up to Len as an argument of a kernel
// that only reads them, for package kernel.
func (r *Reader[T]) MemoryArg(m *vmm.MemoryArg) {
	if m == nil {
		return
	}
	r.base().memoryArg(m)
	m.Access = vmm.AccessRead
}
