package pool

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm"
)

// extras are what a pool does beside allocating: a trace. A pool without one has none. All its
// methods do nothing on nil.
type extras struct {
	mu       sync.Mutex
	trace    io.Writer
	traceErr error
	resized  map[uint64]uint64 // sizes, by the sequence number of the block
}

func newExtras(o Options) *extras {
	if o.Trace == nil {
		return nil
	}
	x := &extras{trace: o.Trace, resized: map[uint64]uint64{}}
	x.write("Thread,Time,Action,Pointer,Size,Stream\n")
	return x
}

// write writes to the trace, whose first error ends it.
func (x *extras) write(text string) {
	if x.trace == nil || x.traceErr != nil {
		return
	}
	_, x.traceErr = io.WriteString(x.trace, text)
}

// line writes what happened in the stream, nil for none, as RMM's logging_resource_adaptor
// does. A stream is a pointer: RMM's replay takes a trace of its default stream only, but it
// reads the hexadecimal number of any other as 0.
func (x *extras) line(action string, ptr vmm.Ptr, size uint64, st *stream) {
	if x.trace == nil {
		return
	}
	at, on := "(nil)", "0"
	if ptr != 0 {
		at = fmt.Sprintf("%#x", uint64(ptr))
	}
	if st != nil && st.s.Number() != 0 {
		on = fmt.Sprintf("%#x", st.s.Number())
	}
	x.write(fmt.Sprintf("1,%s,%s,%s,%d,%s\n", time.Now().Format("15:04:05.000000"), action, at, size, on))
}

func (x *extras) allocated(st *stream, b Block) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.line("allocate", b.ptr, b.size, st)
}

func (x *extras) failed(st *stream, n uint64) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.line("allocate failure", 0, n, st)
}

// free runs f, which frees b in the stream, and notes it; st is nil for FreeNow. No other line
// comes between: one that the memory was allocated again comes later.
func (x *extras) free(st *stream, b Block, f func() error) error {
	if x == nil {
		return f()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := f(); err != nil {
		return err
	}
	x.line("free", b.ptr, x.sizeLocked(b), st)
	delete(x.resized, b.seq)
	return nil
}

// resize runs f, which makes b n bytes long, and notes it: the block is freed, and allocated
// again where it lies, with no other line between. What a shorter block gives up is allocated by
// others in later lines, so f runs with the lock. A longer one takes what earlier lines freed, so
// f runs without it: it may map memory, and functions of Device.OnPressure may free blocks.
func (x *extras) resize(st *stream, b Block, n uint64, f func() error) (err error) {
	if x == nil {
		return f()
	}
	x.mu.Lock()
	was := x.sizeLocked(b)
	x.mu.Unlock()
	if n > was {
		err = f()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if n <= was {
		err = f()
	}
	if err != nil || n == was {
		return err
	}
	x.line("free", b.ptr, was, st)
	x.line("allocate", b.ptr, n, st)
	x.resized[b.seq] = n
	return nil
}

// sizeLocked is the size of a block: b may have that from before a Resize.
func (x *extras) sizeLocked(b Block) uint64 {
	if n, ok := x.resized[b.seq]; ok {
		return n
	}
	return b.size
}

// close returns the error of the trace.
func (x *extras) close() error {
	if x == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	err := x.traceErr
	x.trace, x.traceErr = nil, nil
	if err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	return nil
}

// note notes in a device's history what has happened to a block, of any pool; s is nil without a stream.
// Where that costs much, callers ask KeepsBlocks first, which is no call.
func (b Block) note(l *history.Log, what history.Kind, s *vmm.Stream) {
	l.AddBlock(what, uint64(b.ptr), b.size, s.Number())
}

// sample decides whether a heap profile samples a block of so many bytes. It is called, with the lock
// that guards due, before another call can find the block.
func (p *Pool) sample(due *memsample.Countdown, size uint64) *memsample.Sample {
	if !due.Due(size) {
		return nil
	}
	return due.Sample(p.dev.Samples(), memsample.Block, size)
}
