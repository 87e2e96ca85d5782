package pool

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

// extras are what a pool does beside allocating: a trace, and samples of stacks. A pool
// without them has none. All its methods do nothing on nil.
type extras struct {
	every uint64

	mu       sync.Mutex
	trace    io.Writer
	traceErr error
	left     uint64            // bytes until the next sample
	samples  map[uint64]Sample // by the sequence number of the block
	resized  map[uint64]uint64 // sizes, by the same
}

// Sample is a block that is allocated, and where.
type Sample struct {
	Ptr   vmm.Ptr
	Size  uint64    // bytes, as Alloc was asked for
	Stack []uintptr // for runtime.CallersFrames
}

func newExtras(o Options) *extras {
	if o.Trace == nil && o.SampleStacks == 0 {
		return nil
	}
	x := &extras{every: o.SampleStacks, trace: o.Trace, left: o.SampleStacks, samples: map[uint64]Sample{}, resized: map[uint64]uint64{}}
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
	if st != nil && st.s.Raw() != 0 {
		on = fmt.Sprintf("%#x", uint64(st.s.Raw()))
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
	if x.every == 0 || b.size == 0 {
		return
	}
	if b.size < x.left {
		x.left -= b.size
		return
	}
	x.left = x.every
	var pcs [32]uintptr
	n := runtime.Callers(3, pcs[:]) // from the caller of Alloc on
	x.samples[b.seq] = Sample{b.ptr, b.size, slices.Clone(pcs[:n])}
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
	delete(x.samples, b.seq)
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

// Samples lists the sampled blocks that are still allocated, by address; see
// Options.SampleStacks. The list is the caller's.
func (p *Pool) Samples() []Sample {
	if p == nil || p.extras == nil {
		return nil
	}
	x := p.extras
	x.mu.Lock()
	defer x.mu.Unlock()
	all := slices.Collect(maps.Values(x.samples))
	slices.SortFunc(all, func(a, b Sample) int { return cmp.Compare(a.Ptr, b.Ptr) })
	return all
}
