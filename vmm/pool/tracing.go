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

// watched reports whether tell has someone to tell of the block.
func (p *Pool) watched(b Block) bool { return b.seq&sampledBit != 0 || p.log.KeepsBlocks() }

// tell tells a heap profile and the device's history what has happened to a block; st is nil without
// a stream.
func (p *Pool) tell(what history.Kind, st *stream, b Block) {
	if b.seq&sampledBit != 0 {
		p.samples.tell(p, what, b)
	}
	if !p.log.KeepsBlocks() {
		return
	}
	var s *vmm.Stream
	if st != nil {
		s = st.s
	}
	b.note(p.log, what, s)
}

// note notes what has happened to a block of any pool; s is nil without a stream.
func (b Block) note(l *history.Log, what history.Kind, s *vmm.Stream) {
	l.AddBlock(what, uint64(b.ptr), b.size, s.Number())
}

// samples are blocks that are allocated and were sampled for a heap profile, by their numbers, which
// have sampledBit.
type samples struct {
	mu sync.Mutex
	of map[uint64]*memsample.Sample
}

func (x *samples) tell(p *Pool, what history.Kind, b Block) {
	var made *memsample.Sample
	if what == history.Alloc {
		made = memsample.Now(p.dev.Samples(), memsample.Block, p.rounded(b), 3) // of the caller of Alloc
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch what { //nolint:exhaustive // what happens to blocks
	case history.Alloc:
		if x.of == nil {
			x.of = map[uint64]*memsample.Sample{}
		}
		x.of[b.seq] = made
	case history.Resize:
		x.of[b.seq].Resize(p.rounded(b))
	default:
		x.of[b.seq].End()
		delete(x.of, b.seq)
	}
}

// rounded is how much memory the block uses.
func (p *Pool) rounded(b Block) uint64 {
	if sl := b.in.slab; sl != nil {
		return sl.size
	}
	return (b.size + p.unit - 1) &^ (p.unit - 1)
}
