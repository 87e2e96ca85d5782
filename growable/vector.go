package growable

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"

	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
)

// Vector is a slice of T in device memory that grows in place. Counts and indices are elements. Safe for
// concurrent use: Append is atomic. Only one producer at a time should use Grow and SetLen together. The
// caller must Close it.
type Vector[T any] struct {
	r      *vmm.Range // nil in a zero Vector
	reader Reader[T]  // of r
}

// Options configures New; its zero value is the default.
type Options struct {
	// MaxLen is how many elements there can be; 0 uses Range.Max. If both are set,
	// they must be the same.
	MaxLen int
	// Range configures the Range that holds the elements.
	Range vmm.RangeOptions
}

// New makes an empty Vector. It commits no memory yet. If T is not plain data, it
// returns ErrElement. The caller must Close it.
func New[T any](d *vmm.Device, o Options) (*Vector[T], error) {
	t := reflect.TypeFor[T]()
	if err := check(t); err != nil {
		return nil, fmt.Errorf("make vector: %w", err)
	}
	var err error
	if o.Range.Max, err = maxBytes(o.MaxLen, uint64(t.Size()), "elements", o.Range.Max); err != nil {
		return nil, fmt.Errorf("make vector: %w", err)
	}
	r, err := d.NewRange(o.Range)
	if err != nil {
		return nil, fmt.Errorf("make vector of %v: %w", t, err)
	}
	return newVector[T](r), nil
}

func newVector[T any](r *vmm.Range) *Vector[T] {
	return &Vector[T]{r: r, reader: Reader[T]{c: counted{r, uint64(reflect.TypeFor[T]().Size()), "elements"}}}
}

// FromRange makes a Vector of the bytes in r, whose length must be a whole number
// of elements. The Vector's Close closes r.
func FromRange[T any](r *vmm.Range) (*Vector[T], error) {
	t := reflect.TypeFor[T]()
	if err := check(t); err != nil {
		return nil, fmt.Errorf("make vector: %w", err)
	}
	if r == nil {
		return nil, fmt.Errorf("make vector of %v: %w: no range", t, vmm.ErrInvalid)
	}
	if n := r.Len(); n%uint64(t.Size()) != 0 {
		return nil, fmt.Errorf("make vector of %v: %w: the range has %d bytes, which are no whole number of %d-byte elements", t, vmm.ErrInvalid, n, t.Size())
	}
	return newVector[T](r), nil
}

// read returns the Reader of the elements; nil for a nil Vector.
func (v *Vector[T]) read() *Reader[T] {
	if v == nil {
		return nil
	}
	return &v.reader
}

// base returns the counted Range; nil for a nil Vector.
func (v *Vector[T]) base() *counted {
	if v == nil {
		return nil
	}
	return &v.reader.c
}

// Range returns the Range that holds the elements, for bytes, peers, streams,
// segments and sharing. A caller that writes through it must write whole elements.
func (v *Vector[T]) Range() *vmm.Range { return nonnil.Of(v).r }

// String is the Vector's type, device, length, capacity and maximum.
func (v *Vector[T]) String() string {
	if v.Range() == nil {
		return "no vector"
	}
	return fmt.Sprintf("vector of %s on %v: length %d, capacity %d, maximum %d",
		typeName(reflect.TypeFor[T]()), v.r.Device(), v.Len(), v.Cap(), v.MaxLen())
}

// Len is how many elements have been written.
func (v *Vector[T]) Len() int { return v.base().count(v.Range().Len()) }

// Cap is how many elements have memory.
func (v *Vector[T]) Cap() int { return v.base().count(v.Range().Cap()) }

// MaxLen is how many elements the Vector can grow to.
func (v *Vector[T]) MaxLen() int { return v.base().count(v.Range().Max()) }

// Ptr is the first element's address. It stays the same until Close.
func (v *Vector[T]) Ptr() vmm.Ptr { return v.Range().Ptr() }

// PtrAt is the address of element i, from 0 to Cap. Any other i panics as an index does.
func (v *Vector[T]) PtrAt(i int) vmm.Ptr { return v.base().ptrAt(v.Range(), i) }

// Append writes s after the last element. The copy has finished when Append
// returns: s may be reused, and later readers see the data. A failed Append leaves
// length and contents as they were. Beyond MaxLen it returns vmm.ErrFull.
//
// Values listed one by one cost an allocation, because a driver may pass them to another thread. An
// existing slice costs none, and a Writer buffers single values.
func (v *Vector[T]) Append(s ...T) error {
	if !v.base().whole(v.Range()) {
		return v.base().notWhole(len(s))
	}
	return v.Range().Append(bytesOf(s))
}

// AppendSeq appends the elements of seq, about 1 MiB at a time, and returns how many it has appended. If
// an Append fails, elements appended before stay, and later ones read from seq are lost.
func (v *Vector[T]) AppendSeq(seq iter.Seq[T]) (int, error) {
	if seq == nil {
		return 0, errNoSeq
	}
	return appendSeq(v.base(), 1, v.Append, func(yield func([]T) bool) {
		one := make([]T, 1)
		for one[0] = range seq {
			if !yield(one) {
				return
			}
		}
	})
}

// Grow raises Cap to at least n elements beyond Len. It completes or changes nothing. A kernel may then
// write from PtrAt(Len()) on; SetLen includes what it wrote.
func (v *Vector[T]) Grow(n int) error { return v.base().grow(v.Range(), n) }

// SetLen sets Len to n, at most Cap. A smaller Len drops elements and keeps the
// memory; see Clip.
func (v *Vector[T]) SetLen(n int) error { return v.base().setLen(v.Range(), n) }

// Clip gives back the chunks that lie wholly beyond Len, as vmm.Range.Clip does.
func (v *Vector[T]) Clip() error { return v.Range().Clip() }

// At reads element i, after waiting for work that may write it. An index outside
// [0, Len) panics as a slice's does. The error is that of the copy.
func (v *Vector[T]) At(i int) (x T, err error) {
	x, err = v.read().At(i)
	if err != nil && errors.Is(err, vmm.ErrBounds) {
		index(i, v.Len())
	}
	return x, err
}

// Set replaces element i. An index outside [0, Len) panics as a slice's does. The
// error is that of the copy.
func (v *Vector[T]) Set(i int, x T) error {
	_, err := v.WriteAt([]T{x}, i)
	if errors.Is(err, vmm.ErrBounds) {
		index(i, v.Len())
	}
	return err
}

// ReadAt copies elements from i on to dst, after waiting for work that may write them. It returns how
// many it copied, and io.EOF if dst reaches beyond Len.
func (v *Vector[T]) ReadAt(dst []T, i int) (int, error) { return v.read().ReadAt(dst, i) }

// WriteAt replaces the elements from i on. If not all of them lie below Len, it
// returns vmm.ErrBounds and writes nothing.
func (v *Vector[T]) WriteAt(src []T, i int) (int, error) {
	off, err := v.base().offset("write", i)
	if err != nil {
		return 0, err
	}
	n, err := v.r.WriteAt(bytesOf(src), off)
	return v.base().count(uint64(n)), err
}

// Blocks yields all elements below the Len at the start, at most len(buf) at a
// time; a nil buf is about 1 MiB. Each slice is valid until the next. If a copy
// fails, the last pair has the error.
func (v *Vector[T]) Blocks(buf []T) iter.Seq2[[]T, error] { return v.read().Blocks(buf) }

// All yields all elements below the Len at the start, one by one. If a copy fails, the
// last pair has the error.
func (v *Vector[T]) All() iter.Seq2[T, error] { return v.read().All() }

// Host returns the elements below Len as a slice, if the CPU can address the memory; on CUDA it returns
// vmm.ErrNotSupported. The slice stays valid while the Vector grows, until Close or a Clip or SetLen
// below its end.
func (v *Vector[T]) Host() ([]T, error) { return v.read().Host() }

// Close waits for work that may use the memory, and frees memory and addresses; see
// vmm.Reservation.Close. Twice is fine, and so is a nil Vector.
func (v *Vector[T]) Close() error { return v.Range().Close() }

// CloseContext is Close, except that it stops waiting when ctx is done. The close
// continues.
func (v *Vector[T]) CloseContext(ctx context.Context) error { return v.Range().CloseContext(ctx) }

// MemoryArg sets m to the elements up to Len as an argument of a kernel, for package kernel.
func (v *Vector[T]) MemoryArg(m *vmm.MemoryArg) {
	if m == nil {
		return
	}
	if v == nil {
		*m = vmm.MemoryArg{}
		return
	}
	v.r.MemoryArg(m)
	items(m, v.reader.c.stride)
}
