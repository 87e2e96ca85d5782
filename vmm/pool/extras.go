package pool

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"

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
	x := &extras{every: o.SampleStacks, trace: o.Trace, left: o.SampleStacks, samples: map[uint64]Sample{}}
	x.line("Action,Pointer,Size,Stream\n")
	return x
}

// line writes to the trace, whose first error ends it.
func (x *extras) line(format string, args ...any) {
	if x.trace == nil || x.traceErr != nil {
		return
	}
	_, x.traceErr = fmt.Fprintf(x.trace, format, args...)
}

func (x *extras) allocated(st *stream, b Block) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.line("allocate,%#x,%d,%d\n", uint64(b.ptr), b.size, uint64(st.s.Raw()))
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
	x.line("allocate failure,0x0,%d,%d\n", n, uint64(st.s.Raw()))
}

// free runs f, which frees b in the stream, and notes it; st is nil for FreeNow. No other line
// comes between: one that the memory was allocated again comes later.
func (x *extras) free(st *stream, b Block, f func() error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := f(); err != nil {
		return err
	}
	var raw uint64
	if st != nil {
		raw = uint64(st.s.Raw())
	}
	x.line("free,%#x,%d,%d\n", uint64(b.ptr), b.size, raw)
	delete(x.samples, b.seq)
	return nil
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
	var all []Sample
	for _, s := range x.samples {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Sample) int {
		if a.Ptr < b.Ptr {
			return -1
		}
		return 1
	})
	return all
}
