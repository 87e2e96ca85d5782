package growable

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"reflect"

	"github.com/cuvmm/cuvmm/vmm"
)

// Rows is a table of T in device memory that grows in place, row by row. All rows
// have one width that is known at run time: the length of an embedding, say.
// Counts and indices are rows. With a pitch, padding follows each row; it is
// written as zeros and never read. Safe for concurrent use as Vector is. The caller
// must Close it.
type Rows[T any] struct {
	c     counted
	width int
	data  uint64 // bytes of a row without its padding
}

// RowsOptions configures NewRows; its zero value is the default.
type RowsOptions struct {
	// Pitch is the number of bytes from one row to the next: a multiple of the
	// element's alignment, and at least the size of a row. 0 is no padding.
	Pitch int
	// MaxRows is how many rows to reserve addresses for; 0 uses Range.Max. If both
	// are set, they must be the same.
	MaxRows int
	// Range configures the Range that holds the rows.
	Range vmm.RangeOptions
}

// NewRows makes empty Rows of width elements each. It commits no memory yet. If T
// is not plain data, it returns ErrElement. The caller must Close it.
func NewRows[T any](d *vmm.Device, width int, o RowsOptions) (*Rows[T], error) {
	t := reflect.TypeFor[T]()
	if err := check(t); err != nil {
		return nil, fmt.Errorf("make rows: %w", err)
	}
	data, pitch, err := layout(t, width, o.Pitch)
	if err == nil {
		o.Range.Max, err = maxBytes(o.MaxRows, pitch, "rows", o.Range.Max)
	}
	if err != nil {
		return nil, fmt.Errorf("make rows: %w", err)
	}
	r, err := d.NewRange(o.Range)
	if err != nil {
		return nil, fmt.Errorf("make rows of %d %v: %w", width, t, err)
	}
	return &Rows[T]{counted{r, pitch, "rows"}, width, data}, nil
}

// layout returns the size of a row, and the bytes from one row to the next.
func layout(t reflect.Type, width, pitch int) (data, step uint64, err error) {
	if width < 1 {
		return 0, 0, fmt.Errorf("%w: rows of %d elements", vmm.ErrInvalid, width)
	}
	over, data := bits.Mul64(uint64(width), uint64(t.Size()))
	if over != 0 || int64(data) < 0 {
		return 0, 0, fmt.Errorf("%w: rows of %d elements of %d bytes", vmm.ErrInvalid, width, t.Size())
	}
	if pitch == 0 {
		return data, data, nil
	}
	if pitch < 0 || uint64(pitch) < data || pitch%t.Align() != 0 {
		return 0, 0, fmt.Errorf("%w: a pitch of %d bytes for rows of %d, aligned to %d", vmm.ErrInvalid, pitch, data, t.Align())
	}
	return data, uint64(pitch), nil
}

// base returns the counted Range; the zero value for nil Rows.
func (r *Rows[T]) base() counted {
	if r == nil {
		return counted{}
	}
	return r.c
}

// Range returns the Range that holds the rows, for bytes, peers, streams, segments
// and sharing. A caller that writes through it must write whole rows with their
// padding.
func (r *Rows[T]) Range() *vmm.Range { return r.base().r }

// Width is how many elements a row has.
func (r *Rows[T]) Width() int {
	if r == nil {
		return 0
	}
	return r.width
}

// Pitch is the number of bytes from one row to the next.
func (r *Rows[T]) Pitch() int { return int(r.base().stride) }

// Len is how many rows have been written.
func (r *Rows[T]) Len() int { return r.base().length() }

// Cap is how many rows have memory.
func (r *Rows[T]) Cap() int { return r.base().count(r.Range().Cap()) }

// MaxLen is how many rows there can be.
func (r *Rows[T]) MaxLen() int { return r.base().count(r.Range().Max()) }

// Ptr is the first row's address. It stays the same until Close.
func (r *Rows[T]) Ptr() vmm.Ptr { return r.Range().Ptr() }

// PtrAt is a row's address, for rows from 0 to Cap. Outside it panics as an
// index does.
func (r *Rows[T]) PtrAt(row int) vmm.Ptr { return r.base().ptrAt(row) }

// Append writes s, which must be whole rows, after the last row, as Vector.Append
// does. With a pitch it first makes a copy of s with padding.
func (r *Rows[T]) Append(s ...T) error {
	if err := r.base().checkWhole("append", len(s)); err != nil {
		return err
	}
	b, err := r.pack("append", s)
	if err != nil {
		return err
	}
	return r.Range().Append(b)
}

// rows is how many rows n elements make; an error if not a whole number.
func (r *Rows[T]) rows(op string, n int) (int, error) {
	if width := r.Width(); width == 0 || n%width != 0 {
		return 0, fmt.Errorf("%s %d elements: %w: rows have %d", op, n, vmm.ErrInvalid, r.Width())
	}
	return n / r.width, nil
}

// packed reports whether the rows have no padding.
func (r *Rows[T]) packed() bool { return r.c.stride == r.data }

// pack returns whole rows as bytes with their padding.
func (r *Rows[T]) pack(op string, s []T) ([]byte, error) {
	n, err := r.rows(op, len(s))
	if err != nil {
		return nil, err
	}
	b := bytesOf(s)
	if n == 0 || r.packed() {
		return b, nil
	}
	size, err := r.c.bytes(op, n)
	if err != nil {
		return nil, err
	}
	// Checked before the copy is allocated: with a large pitch it exceeds s by far.
	if limit := r.c.r.Max(); size > limit {
		return nil, fmt.Errorf("%s %d rows: %w: %d bytes, of at most %d", op, n, vmm.ErrFull, size, limit)
	}
	out := make([]byte, size)
	for i := range uint64(n) {
		copy(out[i*r.c.stride:], b[i*r.data:(i+1)*r.data])
	}
	return out, nil
}

// Grow raises Cap to at least n rows beyond Len. It completes or changes nothing.
// A kernel may then write from PtrAt(Len()) on; SetLen counts what it wrote.
func (r *Rows[T]) Grow(n int) error { return r.base().grow(n) }

// SetLen sets Len to n rows, at most Cap. A smaller Len drops rows and keeps the
// memory; see Clip.
func (r *Rows[T]) SetLen(n int) error { return r.base().setLen(n) }

// Clip unmaps the chunks that lie wholly beyond Len, after waiting for work that
// may use them.
func (r *Rows[T]) Clip() error { return r.Range().Clip() }

// ReadAt copies rows from row on to dst, which must be whole rows, after waiting
// for work that may write them. It returns how many rows it copied; beyond Len also
// io.EOF.
func (r *Rows[T]) ReadAt(dst []T, row int) (int, error) {
	off, err := r.base().offset("read", row)
	if err != nil {
		return 0, err
	}
	want, err := r.rows("read into", len(dst))
	if err != nil {
		return 0, err
	}
	b := bytesOf(dst)
	if want == 0 || r.packed() {
		n, err := r.c.r.ReadAt(b, off)
		return r.c.count(uint64(n)), err
	}
	// The padding is read as well, and removed: about 1 MiB at a time, whatever the
	// size of dst.
	batch := int(max(1, min(uint64(want), 1<<20/r.c.stride)))
	var buf []byte
	if batch > 1 {
		buf = make([]byte, uint64(batch)*r.c.stride)
	}
	for i := 0; i < want; {
		got, err := r.readBatch(b[uint64(i)*r.data:], min(batch, want-i), off+int64(uint64(i)*r.c.stride), buf)
		i += got
		if err != nil {
			return i, err
		}
	}
	return want, nil
}

// readBatch reads n rows from byte off on through buf; a single row without it.
func (r *Rows[T]) readBatch(dst []byte, n int, off int64, buf []byte) (int, error) {
	if n == 1 {
		m, err := r.c.r.ReadAt(dst[:r.data], off)
		return int(uint64(m) / r.data), err
	}
	m, err := r.c.r.ReadAt(buf[:uint64(n)*r.c.stride], off)
	got := r.c.count(uint64(m))
	for i := range uint64(got) {
		copy(dst[i*r.data:], buf[i*r.c.stride:][:r.data])
	}
	return got, err
}

// WriteAt replaces the rows from row on by src, which must be whole rows. It returns
// how many it wrote. If not all of them lie below Len, it returns vmm.ErrBounds and
// writes nothing. With a pitch it first makes a copy of src with padding.
func (r *Rows[T]) WriteAt(src []T, row int) (int, error) {
	off, err := r.base().offset("write", row)
	if err != nil {
		return 0, err
	}
	b, err := r.pack("write", src)
	if errors.Is(err, vmm.ErrFull) {
		err = fmt.Errorf("write %d elements at row %d: %w: there are %d rows", len(src), row, vmm.ErrBounds, r.Len())
	}
	if err != nil {
		return 0, err
	}
	n, err := r.c.r.WriteAt(b, off)
	return r.c.count(uint64(n)), err
}

// Blocks yields all rows below the Len at the start, as many at a time as fit into
// buf, which must hold at least one; a nil buf is about 1 MiB. Each slice is valid
// until the next. If a copy fails, the last pair has the error.
func (r *Rows[T]) Blocks(buf []T) iter.Seq2[[]T, error] {
	return blocks(r.base(), r.Width(), buf, r.ReadAt)
}

// Host returns the rows below Len as one slice. If the CPU cannot address the
// memory, or rows have padding, it returns vmm.ErrNotSupported. The slice is valid
// while the Rows grow, until a Clip or SetLen below its end, or Close.
func (r *Rows[T]) Host() ([]T, error) {
	if r != nil && !r.packed() {
		return nil, fmt.Errorf("view rows of %d bytes %d apart as one slice: %w", r.data, r.c.stride, vmm.ErrNotSupported)
	}
	h, err := host[T](r.Range())
	return h[:len(h)-len(h)%max(r.Width(), 1)], err
}

// Close waits for work that may use the memory, and frees memory and addresses; see
// vmm.Reservation.Close. Twice is fine, and so is a nil Rows.
func (r *Rows[T]) Close() error { return r.Range().Close() }

// CloseContext is Close, except that it stops waiting when ctx is done. The close
// continues.
func (r *Rows[T]) CloseContext(ctx context.Context) error { return r.Range().CloseContext(ctx) }
