package growable

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/cuvmm/cuvmm/vmm"
)

// Appender is what a Writer appends to: a *Vector[T], or *Rows[T].
type Appender[T any] interface {
	Append(s ...T) error
	itemWidth() int // elements of an item; 0 for nil or zero Rows
}

func (v *Vector[T]) itemWidth() int { return 1 }

func (r *Rows[T]) itemWidth() int { return r.Width() }

// Writer buffers the elements of a Vector, or the rows of Rows, and appends many at a time, as a
// bufio.Writer does for an io.Writer. Counts are elements or rows. Call Flush after the last Append.
// Unlike a bufio.Writer's, an error is not sticky, because the Append below is all or nothing. A call
// that returns an error has taken none of its elements, has lost none before them, and can be repeated.
// Not safe for concurrent use.
type Writer[T any] struct {
	_     noCopy
	to    Appender[T]
	width int // of to, at least 1
	buf   []T
	n     int // elements of buf that are not appended yet; whole items
}

// Sizes of a buffer in bytes. From the default on, copying a full buffer costs more
// than the call; above the maximum nothing is gained.
const (
	defaultBuffer = 1 << 20
	maxBuffer     = 64 << 20
)

// NewWriter makes a Writer that buffers n elements of a Vector or n rows, at most
// 64 MiB and at least one; for n <= 0 about 1 MiB.
func NewWriter[T any](to Appender[T], n int) *Writer[T] {
	w := &Writer[T]{}
	w.Reset(to)
	size := max(1, w.width*int(reflect.TypeFor[T]().Size()))
	if n <= 0 {
		n = defaultBuffer / size
	}
	w.buf = make([]T, w.width*max(1, min(n, maxBuffer/size)))
	return w
}

// Append takes all of x or, with an error, none of it; for Rows, x must be whole rows. If x does not fit
// into the buffer, the buffer is flushed first. A call costs a few nanoseconds and no allocation. A slice
// larger than the buffer is copied once more; Flush and then Vector.Append or Rows.Append avoid that.
func (w *Writer[T]) Append(x ...T) error {
	if w == nil {
		return fmt.Errorf("append %d elements: %w", len(x), errNothing)
	}
	if len(x) == 1 && w.width == 1 && w.n < len(w.buf) {
		w.buf[w.n] = x[0]
		w.n++
		return nil
	}
	if w.to == nil {
		return fmt.Errorf("append %d elements: %w", len(x), errNothing)
	}
	if len(x)%w.width != 0 {
		return fmt.Errorf("append %d elements: %w: not whole rows of %d", len(x), vmm.ErrInvalid, w.width)
	}
	// The flush comes before anything of x is taken: if it fails, none of x is.
	if len(x) > len(w.buf)-w.n {
		if err := w.Flush(); err != nil {
			return err
		}
		if len(x) > len(w.buf) {
			// A clone, so that x does not escape: else the elements of every call
			// would have to be allocated on the heap.
			return w.to.Append(slices.Clone(x)...)
		}
	}
	w.n += copy(w.buf[w.n:], x)
	return nil
}

// Flush appends what is buffered. If that fails, all of it stays buffered.
func (w *Writer[T]) Flush() error {
	if w == nil || w.to == nil {
		return fmt.Errorf("flush: %w", errNothing)
	}
	// Also without elements: the Vector may be closed.
	if err := w.to.Append(w.buf[:w.n]...); err != nil {
		return fmt.Errorf("flush %d elements: %w", w.n, err)
	}
	w.n = 0
	return nil
}

// Reset drops what is buffered and continues with another Vector or other Rows. The
// buffer stays the same.
func (w *Writer[T]) Reset(to Appender[T]) {
	if w == nil {
		return
	}
	w.to, w.width, w.n = to, 1, 0
	if to != nil {
		w.width = max(1, to.itemWidth())
	}
}

// Buffered is how many elements or rows are in the buffer.
func (w *Writer[T]) Buffered() int {
	if w == nil {
		return 0
	}
	return w.n / max(1, w.width)
}
