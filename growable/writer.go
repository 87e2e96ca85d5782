package growable

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/cuvmm/cuvmm/vmm"
)

// Writer buffers elements and appends them to a Vector many at a time, as a
// bufio.Writer does for an io.Writer. Call Flush after the last Append. An error is
// not sticky, unlike that of a bufio.Writer: because Vector.Append is all or
// nothing, a call that returns an error has taken none of its elements and lost
// none of those before, and can be repeated. Not safe for concurrent use.
type Writer[T any] struct {
	v   *Vector[T]
	buf []T
	n   int // elements of buf that are not appended yet
}

// Sizes of a buffer in bytes. From the default on, copying a full buffer costs more
// than the call; above the maximum nothing is gained.
const (
	defaultBuffer = 1 << 20
	maxBuffer     = 64 << 20
)

// NewWriter makes a Writer that buffers n elements, at most 64 MiB; for n <= 0
// about 1 MiB.
func NewWriter[T any](v *Vector[T], n int) *Writer[T] {
	size := max(int(reflect.TypeFor[T]().Size()), 1)
	if n <= 0 {
		n = defaultBuffer / size
	}
	return &Writer[T]{v: v, buf: make([]T, max(1, min(n, maxBuffer/size)))}
}

// Append takes all of x or, with an error, none of it. If x does not fit into the
// buffer, the buffer is flushed first. A call costs a few nanoseconds and no
// allocation. For slices as large as the buffer use AppendSlice.
func (w *Writer[T]) Append(x ...T) error {
	if w == nil {
		return noWriter("append", len(x))
	}
	if len(x) == 1 && w.n < len(w.buf) {
		w.buf[w.n] = x[0]
		w.n++
		return nil
	}
	// The flush comes before anything of x is taken: if it fails, none of x is.
	if len(x) > w.Available() {
		if err := w.Flush(); err != nil {
			return err
		}
		if len(x) > len(w.buf) {
			// A clone, so that x does not escape: else the elements of every call
			// would have to be allocated on the heap.
			return w.v.Append(slices.Clone(x)...)
		}
	}
	w.n += copy(w.buf[w.n:], x)
	return nil
}

// AppendSlice is Append for large slices: one that would fill the whole buffer is
// appended to the Vector without a copy.
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

// Flush appends the buffered elements to the Vector. If that fails, all of them
// stay buffered.
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

// Reset drops the buffered elements and continues with v.
func (w *Writer[T]) Reset(v *Vector[T]) {
	if w != nil {
		w.v, w.n = v, 0
	}
}

// Size is how many elements the buffer holds.
func (w *Writer[T]) Size() int {
	if w == nil {
		return 0
	}
	return len(w.buf)
}

// Buffered is how many elements are in the buffer.
func (w *Writer[T]) Buffered() int {
	if w == nil {
		return 0
	}
	return w.n
}

// Available is how many more elements fit before a flush.
func (w *Writer[T]) Available() int { return w.Size() - w.Buffered() }

func noWriter(op string, n int) error {
	return fmt.Errorf("%s %d elements: %w: no writer", op, n, vmm.ErrInvalid)
}
