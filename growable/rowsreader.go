package growable

import (
	"fmt"
	"iter"
	"math"
	"math/bits"
	"reflect"
	"slices"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
)

// RowsReader reads a Source as rows of T, as Rows would be read. Counts and indices are
// rows, and padding is left out. It owns nothing, as a Reader does not. Safe for
// concurrent use.
type RowsReader[T any] struct {
	_     noCopy
	c     counted
	width int
	data  uint64 // bytes of a row without its padding
}

// NewRowsReader makes a RowsReader of the rows of width elements in src. If src has a method Layout, as a
// shareable.View has, its result must be rows of width T; else NewRowsReader returns vmm.ErrInvalid with
// the difference. The layout sets the pitch, and the width if width is 0. Without that method, width must
// not be 0, and the rows have no padding. If T is not plain data, it returns ErrElement.
func NewRowsReader[T any](src Source, width int) (_ *RowsReader[T], err error) {
	t := reflect.TypeFor[T]()
	defer errtext.Wrapf(&err, "make reader of rows of %v", t)
	if err := check(t); err != nil {
		return nil, err
	}
	// The layout completes what the caller left open, and then everything is compared.
	var have vmm.Layout
	if d, ok := src.(described); ok {
		have = d.Layout()
	}
	if width == 0 && len(have.Shape) > 0 {
		width = have.Shape[0]
	}
	data, pitch, err := rowSize(t, width, 0)
	if err != nil {
		return nil, err
	}
	want, packed := layoutOf(t, data, width), have
	packed.Pitch = data
	if packed.Equal(want) {
		pitch = max(data, have.Pitch)
		want.Pitch = pitch
	}
	if err := checkSource(src, want); err != nil {
		return nil, err
	}
	return &RowsReader[T]{c: counted{src, pitch, "rows"}, width: width, data: data}, nil
}

// rowSize returns the size of a row, and the bytes from one row to the next.
func rowSize(t reflect.Type, width, pitch int) (data, step uint64, err error) {
	if width < 1 {
		return 0, 0, fmt.Errorf("%w: rows of %d elements, where 1 is the least", vmm.ErrInvalid, width)
	}
	over, data := bits.Mul64(uint64(width), uint64(t.Size()))
	if over != 0 || data > math.MaxInt64 {
		return 0, 0, fmt.Errorf("%w: rows of %d elements of %d bytes each: a row is more than 2^63-1 bytes", vmm.ErrInvalid, width, t.Size())
	}
	if pitch == 0 {
		return data, data, nil
	}
	if pitch < 0 || uint64(pitch) < data {
		return 0, 0, fmt.Errorf("%w: a pitch of %d bytes for rows of %d", vmm.ErrInvalid, pitch, data)
	}
	if pitch%t.Align() != 0 {
		return 0, 0, fmt.Errorf("%w: a pitch of %d bytes, which is no multiple of the alignment %d", vmm.ErrInvalid, pitch, t.Align())
	}
	return data, uint64(pitch), nil
}

// base returns the counted Source; nil for a nil RowsReader.
func (r *RowsReader[T]) base() *counted {
	if r == nil {
		return nil
	}
	return &r.c
}

// Layout describes the rows, as Rows.Layout does; for nil it is the zero Layout.
func (r *RowsReader[T]) Layout() vmm.Layout {
	if r == nil {
		return vmm.Layout{}
	}
	return layoutOf(reflect.TypeFor[T](), r.c.stride, r.width)
}

// Width is how many elements a row has.
func (r *RowsReader[T]) Width() int { return nonnil.Of(r).width }

// Pitch is the number of bytes from one row to the next.
func (r *RowsReader[T]) Pitch() int { return int(nonnil.Of(r).c.stride) }

// Len is how many whole rows there are. It falls if the Source's Len does.
func (r *RowsReader[T]) Len() int { return r.base().length() }

// Changed is the Source's; see Reader.Changed.
func (r *RowsReader[T]) Changed() <-chan struct{} { return r.base().changed() }

// pitchedSource is a Source that can leave the padding out, as a vmm.Range can.
type pitchedSource interface {
	ReadRowsAt(p []byte, off int64, width, pitch uint64) (int, error)
}

// ReadAt copies rows from row on to dst, which must be whole rows. It returns how many rows it copied,
// and io.EOF if dst reaches beyond Len. Reading one row, into Width elements, costs no allocation.
func (r *RowsReader[T]) ReadAt(dst []T, row int) (int, error) {
	c := r.base()
	off, err := c.offset("read", row)
	if err != nil {
		return 0, err
	}
	want, err := r.rows("read into", len(dst))
	if err != nil {
		return 0, err
	}
	b := bytesOf(dst)
	if want == 0 || r.packed() {
		n, err := c.read(b, off)
		return c.count(uint64(n)), err
	}
	if src, ok := c.src.(pitchedSource); ok {
		n, err := src.ReadRowsAt(b, off, r.data, c.stride)
		if n != len(b) {
			n, err = c.short(n, len(b), err)
		}
		return int(uint64(n) / r.data), err
	}
	// From another Source the padding is read as well, and removed: about 1 MiB at a
	// time, whatever the size of dst.
	batch := int(max(1, min(uint64(want), 1<<20/c.stride)))
	var buf []byte
	if batch > 1 {
		buf = make([]byte, uint64(batch)*c.stride)
	}
	for i := 0; i < want; {
		got, err := r.readBatch(b[uint64(i)*r.data:], min(batch, want-i), off+int64(uint64(i)*c.stride), buf)
		i += got
		if err != nil {
			return i, err
		}
	}
	return want, nil
}

// readBatch reads n rows from byte off on through buf; a single row without it.
func (r *RowsReader[T]) readBatch(dst []byte, n int, off int64, buf []byte) (int, error) {
	if n == 1 {
		m, err := r.c.read(dst[:r.data], off)
		return int(uint64(m) / r.data), err
	}
	m, err := r.c.read(buf[:uint64(n)*r.c.stride], off)
	got := r.c.count(uint64(m))
	for i := range uint64(got) {
		copy(dst[i*r.data:], buf[i*r.c.stride:][:r.data])
	}
	return got, err
}

// rows is how many rows n elements make; an error if not a whole number.
func (r *RowsReader[T]) rows(op string, n int) (int, error) {
	if r == nil || r.c.src == nil {
		return 0, fmt.Errorf("%s %d elements: %w", op, n, errNothing)
	}
	if n%r.width != 0 {
		return 0, fmt.Errorf("%s %d elements: %w: not whole rows of %d", op, n, vmm.ErrInvalid, r.width)
	}
	return n / r.width, nil
}

// packed reports whether the rows have no padding.
func (r *RowsReader[T]) packed() bool { return r.c.stride == r.data }

// Blocks yields all rows below the Len at the start, as many at a time as fit into
// buf, which must hold at least one; a nil buf is about 1 MiB. Each slice is valid
// until the next. If a copy fails, the last pair has the error.
func (r *RowsReader[T]) Blocks(buf []T) iter.Seq2[[]T, error] {
	return blocks(r.base(), r.Width(), buf, r.ReadAt)
}

// All yields all rows below the Len at the start, one by one. Each slice is valid until
// the next. If a copy fails, the last pair has the error.
func (r *RowsReader[T]) All() iter.Seq2[[]T, error] {
	return func(yield func([]T, error) bool) {
		for block, err := range r.Blocks(nil) {
			if err != nil {
				yield(nil, err)
				return
			}
			for row := range slices.Chunk(block, r.width) {
				if !yield(row, nil) {
					return
				}
			}
		}
	}
}

// Host returns the rows below Len as one slice, as Reader.Host returns elements. If the
// rows have padding, it returns vmm.ErrNotSupported.
func (r *RowsReader[T]) Host() ([]T, error) {
	if r != nil && !r.packed() {
		return nil, fmt.Errorf("view rows of %d bytes %d apart as one slice: %w", r.data, r.c.stride, vmm.ErrNotSupported)
	}
	h, err := host[T](r.base())
	return h[:len(h)-len(h)%max(r.Width(), 1)], err
}

// MemoryArg sets m to the rows up to Len, including padding, as an argument of a kernel that only reads
// them, for package kernel.
func (r *RowsReader[T]) MemoryArg(m *vmm.MemoryArg) {
	if m == nil {
		return
	}
	r.base().memoryArg(m)
	m.Access = vmm.AccessRead
}
