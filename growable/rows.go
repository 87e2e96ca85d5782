package growable

import (
	"context"
	"fmt"
	"iter"
	"reflect"

	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
)

// Rows is a table of T in device memory that grows in place, row by row. All rows have one width, set at
// run time, for example the length of an embedding. Counts and indices are rows. With a pitch, padding
// follows each row; it is never written or read. The padding is zeros with RangeOptions.Zero. Otherwise
// it is what the memory contained, which readers in other processes see too. Safe for concurrent use as
// Vector is. The caller must Close it.
type Rows[T any] struct {
	r      *vmm.Range    // nil in zero Rows
	reader RowsReader[T] // of r
}

// RowsOptions configures NewRows; its zero value is the default.
type RowsOptions struct {
	// Pitch is the number of bytes from one row to the next: a multiple of the element's alignment, and
	// at least the size of a row. 0 is no padding. vmm.Device.Pitch returns what the device prefers.
	Pitch int
	// MaxRows is how many rows there can be; 0 uses Range.Max. If both are set, they
	// must be the same.
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
	data, pitch, err := rowSize(t, width, o.Pitch)
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
	return &Rows[T]{r: r, reader: RowsReader[T]{c: counted{r, pitch, "rows"}, width: width, data: data}}, nil
}

// read returns the RowsReader of the rows; nil for nil Rows.
func (r *Rows[T]) read() *RowsReader[T] {
	if r == nil {
		return nil
	}
	return &r.reader
}

// base returns the counted Range; nil for nil Rows.
func (r *Rows[T]) base() *counted { return r.read().base() }

// Range returns the Range that holds the rows, for bytes, peers, streams, segments
// and sharing. A caller that appends through it must append whole rows with their
// padding; see vmm.Range.AppendRows.
func (r *Rows[T]) Range() *vmm.Range {
	r = nonnil.Of(r)
	return r.r
}

// String is the type and width of the rows, their device, length, capacity and maximum.
func (r *Rows[T]) String() string {
	if r.Range() == nil {
		return "no rows"
	}
	return fmt.Sprintf("rows of %d %s on %v: length %d, capacity %d, maximum %d",
		r.Width(), typeName(reflect.TypeFor[T]()), r.r.Device(), r.Len(), r.Cap(), r.MaxLen())
}

// Width is how many elements a row has.
func (r *Rows[T]) Width() int { return r.read().Width() }

// Pitch is the number of bytes from one row to the next.
func (r *Rows[T]) Pitch() int { return r.read().Pitch() }

// Len is how many rows have been written.
func (r *Rows[T]) Len() int { return r.base().count(r.Range().Len()) }

// Cap is how many rows have memory.
func (r *Rows[T]) Cap() int { return r.base().count(r.Range().Cap()) }

// MaxLen is how many rows there can be.
func (r *Rows[T]) MaxLen() int { return r.base().count(r.Range().Max()) }

// Ptr is the first row's address. It stays the same until Close.
func (r *Rows[T]) Ptr() vmm.Ptr { return r.Range().Ptr() }

// PtrAt is a row's address, for rows from 0 to Cap. Any other row panics as an index does.
func (r *Rows[T]) PtrAt(row int) vmm.Ptr { return r.base().ptrAt(r.Range(), row) }

// Append writes s, which must be whole rows, after the last row, as Vector.Append
// does.
func (r *Rows[T]) Append(s ...T) error {
	if !r.base().whole(r.Range()) {
		return r.base().notWhole(len(s))
	}
	if _, err := r.read().rows("append", len(s)); err != nil {
		return err
	}
	return r.r.AppendRows(bytesOf(s), r.reader.data, r.reader.c.stride)
}

// AppendSeq appends the rows of seq, about 1 MiB at a time, and returns how many it has appended. Each
// slice must be whole rows. If one is not, or an Append fails, rows appended before stay, and later ones
// read from seq are lost.
func (r *Rows[T]) AppendSeq(seq iter.Seq[[]T]) (int, error) {
	if seq == nil {
		return 0, errNoSeq
	}
	return appendSeq(r.base(), r.Width(), r.Append, seq)
}

// Grow raises Cap to at least n rows beyond Len. On error nothing has changed. A kernel may then write
// from PtrAt(Len()) on; SetLen includes what it wrote.
func (r *Rows[T]) Grow(n int) error { return r.base().grow(r.Range(), n) }

// SetLen sets Len to n rows, at most Cap. A smaller Len drops rows and keeps the
// memory; see Clip.
func (r *Rows[T]) SetLen(n int) error { return r.base().setLen(r.Range(), n) }

// Clip gives back the chunks that lie wholly beyond Len, as vmm.Range.Clip does.
func (r *Rows[T]) Clip() error { return r.Range().Clip() }

// ReadAt copies rows from row on to dst, which must be whole rows, after waiting for work that may write
// them. It returns how many rows it copied, and io.EOF if dst reaches beyond Len. Reading one row, into
// Width elements, costs no allocation.
func (r *Rows[T]) ReadAt(dst []T, row int) (int, error) { return r.read().ReadAt(dst, row) }

// WriteAt replaces the rows from row on with src, which must be whole rows. It returns how many it wrote.
// If not all of them lie below Len, it returns vmm.ErrBounds and writes nothing.
func (r *Rows[T]) WriteAt(src []T, row int) (int, error) {
	off, err := r.base().offset("write", row)
	if err != nil {
		return 0, err
	}
	if _, err := r.read().rows("write", len(src)); err != nil {
		return 0, err
	}
	n, err := r.r.WriteRowsAt(bytesOf(src), off, r.reader.data, r.reader.c.stride)
	return int(uint64(n) / r.reader.data), err
}

// Blocks yields all rows below the Len at the start, as many at a time as fit into
// buf, which must hold at least one; a nil buf is about 1 MiB. Each slice is valid
// until the next. If a copy fails, the last pair has the error.
func (r *Rows[T]) Blocks(buf []T) iter.Seq2[[]T, error] { return r.read().Blocks(buf) }

// All yields all rows below the Len at the start, one by one. Each slice is valid until
// the next. If a copy fails, the last pair has the error.
func (r *Rows[T]) All() iter.Seq2[[]T, error] { return r.read().All() }

// Host returns the rows below Len as one slice. If the CPU cannot address the memory, or rows have
// padding, it returns vmm.ErrNotSupported. The slice stays valid while the Rows grow, until Close or a
// Clip or SetLen below its end.
func (r *Rows[T]) Host() ([]T, error) { return r.read().Host() }

// Close waits for work that may use the memory, and frees memory and addresses; see
// vmm.Reservation.Close. Twice is fine, and so is a nil Rows.
func (r *Rows[T]) Close() error { return r.Range().Close() }

// CloseContext is Close, except that it stops waiting when ctx is done. The close
// continues.
func (r *Rows[T]) CloseContext(ctx context.Context) error { return r.Range().CloseContext(ctx) }

// MemoryArg sets m to the rows up to Len, including padding, as an argument of a kernel, for package
// kernel.
func (r *Rows[T]) MemoryArg(m *vmm.MemoryArg) { r.base().memoryArg(m) }
