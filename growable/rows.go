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

// Rows is rows of T in device memory, all of one width that is known at run
// time (the length of an embedding, say), growing in place. Counts and indices
// are rows. With a pitch each row is followed by padding, which is written as
// zeros and never read as data. Safe for concurrent use as Vector is. The
// caller must Close it.
type Rows[T any] struct {
	c     counted
	width int
	data  uint64 // bytes of a row without its padding
}

// RowsOptions is how Rows are made; its zero value is the default.
type RowsOptions struct {
	// Pitch is how many bytes one row begins after the other: a multiple of the
	// element's alignment, and no less than a row has. 0 is rows without padding.
	Pitch int
	// MaxRows is how many rows to reserve addresses for; 0 leaves it to
	// Range.Max. Both together must agree.
	MaxRows int
	// Range is how the memory below is made.
	Range vmm.RangeOptions
}

// NewRows makes empty Rows of width elements each. It commits no memory yet. A
// T that is not plain data is ErrElement. The caller must Close it.
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

// layout is the bytes of a row, and from one row to the next.
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

// base is what is counted, nothing for nil Rows.
func (r *Rows[T]) base() counted {
	if r == nil {
		return counted{}
	}
	return r.c
}

// Range is the memory below: bytes, peers, streams, segments, sharing. Whoever
// writes through it keeps to whole rows, with their padding.
func (r *Rows[T]) Range() *vmm.Range { return r.base().r }

// Width is how many elements a row has.
func (r *Rows[T]) Width() int {
	if r == nil {
		return 0
	}
	return r.width
}

// Pitch is how many bytes one row begins after the other.
func (r *Rows[T]) Pitch() int { return int(r.base().stride) }

// Len is how many rows have been written.
func (r *Rows[T]) Len() int { return r.base().length() }

// Cap is how many rows have memory behind them.
func (r *Rows[T]) Cap() int { return r.base().count(r.Range().Cap()) }

// MaxLen is how many rows there can be.
func (r *Rows[T]) MaxLen() int { return r.base().count(r.Range().Max()) }

// Ptr is the first row's address. It stays the same until Close.
func (r *Rows[T]) Ptr() vmm.Ptr { return r.Range().Ptr() }

// PtrAt is a row's address, for rows from 0 to Cap. Outside it panics as an
// index does.
func (r *Rows[T]) PtrAt(row int) vmm.Ptr { return r.base().ptrAt(row) }

// Append writes s, which must be whole rows, behind the last row, as
// Vector.Append does. With a pitch it first makes a copy of s with padding.
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

// rows is how many rows n elements are.
func (r *Rows[T]) rows(doing string, n int) (int, error) {
	if width := r.Width(); width == 0 || n%width != 0 {
		return 0, fmt.Errorf("%s %d elements: %w: rows have %d", doing, n, vmm.ErrInvalid, r.Width())
	}
	return n / r.width, nil
}

// packed says that there is no padding.
func (r *Rows[T]) packed() bool { return r.c.stride == r.data }

// pack is whole rows as they lie in memory.
func (r *Rows[T]) pack(doing string, s []T) ([]byte, error) {
	n, err := r.rows(doing, len(s))
	if err != nil {
		return nil, err
	}
	b := bytesOf(s)
	if n == 0 || r.packed() {
		return b, nil
	}
	size, err := r.c.bytes(doing, n)
	if err != nil {
		return nil, err
	}
	if most := r.c.r.Max(); size > most {
		return nil, fmt.Errorf("%s %d rows: %w: %d bytes, of at most %d", doing, n, vmm.ErrFull, size, most)
	}
	out := make([]byte, size)
	for i := range uint64(n) {
		copy(out[i*r.c.stride:], b[i*r.data:(i+1)*r.data])
	}
	return out, nil
}

// Grow makes room for n more rows beyond Len. It completes or changes nothing.
// A kernel may then write from PtrAt(Len()) on, and SetLen shows it.
func (r *Rows[T]) Grow(n int) error { return r.base().grow(n) }

// SetLen moves Len to n rows, which must lie within Cap. Moved down it drops
// rows and keeps the memory; see Clip.
func (r *Rows[T]) SetLen(n int) error { return r.base().setLen(n) }

// Clip gives back the chunks that lie wholly beyond Len, after waiting for work
// that may use them.
func (r *Rows[T]) Clip() error { return r.Range().Clip() }

// ReadAt copies rows from row on to dst, which must be whole rows, after
// waiting for work that may write them, and gives how many rows. Past Len it
// answers io.EOF.
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
	// About 1 MiB with padding at a time, whatever the size of dst.
	piece := int(max(1, min(uint64(want), 1<<20/r.c.stride)))
	var buf []byte
	if piece > 1 {
		buf = make([]byte, uint64(piece)*r.c.stride)
	}
	for i := 0; i < want; {
		got, err := r.readPiece(b[uint64(i)*r.data:], min(piece, want-i), off+int64(uint64(i)*r.c.stride), buf)
		i += got
		if err != nil {
			return i, err
		}
	}
	return want, nil
}

// readPiece reads n rows from byte off on by way of buf, one of them directly.
func (r *Rows[T]) readPiece(dst []byte, n int, off int64, buf []byte) (int, error) {
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

// WriteAt replaces rows from row on by src, which must be whole rows, and gives
// how many. All of them must lie below Len, else it answers vmm.ErrBounds and
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

// Blocks reads all rows below Len, as it stands at the start, in pieces of as
// many as fit into buf, at least one; a nil buf is about 1 MiB. Each piece is
// valid until the next. A failed copy is the last pair's error.
func (r *Rows[T]) Blocks(buf []T) iter.Seq2[[]T, error] {
	return blocks(r.base(), r.Width(), buf, r.ReadAt)
}

// Host is the rows below Len as one slice, where the CPU can address the memory
// and there is no padding, else vmm.ErrNotSupported. It stays valid while there
// come more, up to a Clip or SetLen below it, or Close.
func (r *Rows[T]) Host() ([]T, error) {
	if r != nil && !r.packed() {
		return nil, fmt.Errorf("view rows of %d bytes %d apart as one slice: %w", r.data, r.c.stride, vmm.ErrNotSupported)
	}
	h, err := host[T](r.Range())
	return h[:len(h)-len(h)%max(r.Width(), 1)], err
}

// Close waits for work that may use the memory and gives it back, with the
// addresses; see vmm.Reservation.Close. Twice is fine, and so is a nil Rows.
func (r *Rows[T]) Close() error { return r.Range().Close() }

// CloseContext is Close that stops waiting when ctx is done; the close goes on
// by itself.
func (r *Rows[T]) CloseContext(ctx context.Context) error { return r.Range().CloseContext(ctx) }
