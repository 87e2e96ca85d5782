package pool

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// trace writes what a pool does to Options.Trace. A pool without one has none, and all methods do
// nothing on nil.
type trace struct {
	mu      sync.Mutex
	w       io.Writer
	err     error             // the first, which ends it
	resized map[uint64]uint64 // sizes, by the sequence number of the block
}

func newTrace(o Options) *trace {
	if o.Trace == nil {
		return nil
	}
	t := &trace{w: o.Trace, resized: map[uint64]uint64{}}
	t.write("Thread,Time,Action,Pointer,Size,Stream\n")
	return t
}

// write writes a text, unless an error has ended the trace.
func (t *trace) write(text string) {
	if t.w == nil || t.err != nil {
		return
	}
	_, t.err = io.WriteString(t.w, text)
}

// line writes what happened in the stream, nil for none, as RMM's logging_resource_adaptor
// does. A stream is a pointer: RMM's replay takes a trace of its default stream only, but it
// reads the hexadecimal number of any other as 0.
func (t *trace) line(action string, ptr vmm.Ptr, size uint64, st *stream) {
	if t.w == nil {
		return
	}
	at, on := "(nil)", "0"
	if ptr != 0 {
		at = fmt.Sprintf("%#x", uint64(ptr))
	}
	if st != nil && inside.VMM.StreamNumber(st.s) != 0 {
		on = fmt.Sprintf("%#x", inside.VMM.StreamNumber(st.s))
	}
	t.write(fmt.Sprintf("1,%s,%s,%s,%d,%s\n", time.Now().Format("15:04:05.000000"), action, at, size, on))
}

func (t *trace) allocated(st *stream, b Block) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line("allocate", b.ptr, b.size, st)
}

func (t *trace) failed(st *stream, n uint64) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line("allocate failure", 0, n, st)
}

// free runs f, which frees b in the stream, and notes it; st is nil for FreeNow. No other line
// comes between: one that the memory was allocated again comes later.
func (t *trace) free(st *stream, b Block, f func() error) error {
	if t == nil {
		return f()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := f(); err != nil {
		return err
	}
	t.line("free", b.ptr, t.sizeLocked(b), st)
	delete(t.resized, b.seq)
	return nil
}

// resize runs f, which makes b n bytes long, and notes it: the block is freed, and allocated
// again where it lies, with no other line between. What a shorter block gives up is allocated by
// others in later lines, so f runs with the lock. A longer one takes what earlier lines freed, so
// f runs without it: it may map memory, and functions of Device.OnPressure may free blocks.
func (t *trace) resize(st *stream, b Block, n uint64, f func() error) (err error) {
	if t == nil {
		return f()
	}
	t.mu.Lock()
	was := t.sizeLocked(b)
	t.mu.Unlock()
	if n > was {
		err = f()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n <= was {
		err = f()
	}
	if err != nil || n == was {
		return err
	}
	t.line("free", b.ptr, was, st)
	t.line("allocate", b.ptr, n, st)
	t.resized[b.seq] = n
	return nil
}

// sizeLocked is the size of a block: b may have that from before a Resize.
func (t *trace) sizeLocked(b Block) uint64 {
	if n, ok := t.resized[b.seq]; ok {
		return n
	}
	return b.size
}

// close returns the error of the trace.
func (t *trace) close() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.err
	t.w, t.err = nil, nil
	if err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	return nil
}
