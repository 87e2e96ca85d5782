package growable

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/cuvmm/cuvmm/vmm"
)

// Writer gathers elements and appends them to a Vector many at a time: what
// bufio.Writer is to an io.Writer. After the last Append comes Flush. Unlike
// bufio's its errors do not stick, because Vector.Append is all or nothing: a
// call that answers an error has taken none of its elements and lost none of
// those before, and can be made again. Not safe for concurrent use.
type Writer[T any] struct {
	v   *Vector[T]
	buf []T
	n   int // of buf are waiting
}

const (
	// defaultBuffer makes the copy of a full buffer dearer than its call.
	defaultBuffer = 1 << 20
	// mostBuffer is where the size of a buffer is no help any more.
	mostBuffer = 64 << 20
)

// NewWriter makes a Writer that gathers n elements, at most 64 MiB of them; for
// n <= 0 it is about 1 MiB.
func NewWriter[T any](v *Vector[T], n int) *Writer[T] {
	size := max(int(reflect.TypeFor[T]().Size()), 1)
	if n <= 0 {
		n = defaultBuffer / size
	}
	return &Writer[T]{v: v, buf: make([]T, max(1, min(n, mostBuffer/size)))}
}

// Append takes all of x or, with an error, none of it. What does not fit behind
// what is gathered has that flushed first. It costs a few nanoseconds and no
// memory for each call; for slices as large as the buffer take AppendSlice.
func (w *Writer[T]) Append(x ...T) error {
	if w == nil {
		return noWriter("append", len(x))
	}
	if len(x) == 1 && w.n < len(w.buf) {
		w.buf[w.n] = x[0]
		w.n++
		return nil
	}
	if len(x) > w.Available() {
		if err := w.Flush(); err != nil {
			return err
		}
		if len(x) > len(w.buf) {
			// Were x itself passed on, every call's elements would have to be
			// allocated: they could not be on the caller's stack.
			return w.v.Append(slices.Clone(x)...)
		}
	}
	w.n += copy(w.buf[w.n:], x)
	return nil
}

// AppendSlice is Append for large slices: what would fill the whole buffer goes
// to the Vector as it is.
func (w *Writer[T]) AppendSlice(s []T) error {
	if w == nil {
		return noWriter("append", len(s))
	}
	if len(s) < len(w.buf) {
		return w.Append(s...)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return w.v.Append(s...)
}

// Flush appends what is gathered to the Vector. If that fails all of it stays
// gathered.
func (w *Writer[T]) Flush() error {
	if w.Buffered() == 0 {
		return nil
	}
	if err := w.v.Append(w.buf[:w.n]...); err != nil {
		return fmt.Errorf("flush %d elements: %w", w.n, err)
	}
	w.n = 0
	return nil
}

// Reset drops what is gathered and goes on with v.
func (w *Writer[T]) Reset(v *Vector[T]) {
	if w != nil {
		w.v, w.n = v, 0
	}
}

// Size is how many elements the Writer can gather.
func (w *Writer[T]) Size() int {
	if w == nil {
		return 0
	}
	return len(w.buf)
}

// Buffered is how many elements are gathered.
func (w *Writer[T]) Buffered() int {
	if w == nil {
		return 0
	}
	return w.n
}

// Available is how many more elements fit before a flush.
func (w *Writer[T]) Available() int { return w.Size() - w.Buffered() }

func noWriter(doing string, n int) error {
	return fmt.Errorf("%s %d elements: %w: no writer", doing, n, vmm.ErrInvalid)
}
