package pool

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// Trace returns an Allocator that passes all calls on to a, and writes them to w in the form that
// RMM writes and its replay benchmark reads: Thread,Time,Action,Pointer,Size,Stream. Thread is
// always 1. Blocks of a may be freed in the new Allocator, and its blocks in a, which writes
// nothing.
//
// Each Alloc, Free and FreeNow writes a line; an Alloc that fails writes "allocate failure". A
// Resize to another size writes a free and an allocation at the same address, one line after the
// other. Other calls that fail write none. Write of w is called under a lock, and must not call the
// Allocator. Its first error ends the trace. Close, which also closes a, returns that error.
func Trace(a Allocator, w io.Writer) Allocator {
	t := &traced{Allocator: a, w: w, resized: map[vmm.Ptr]uint64{}}
	t.write("Thread,Time,Action,Pointer,Size,Stream\n")
	return t
}

type traced struct {
	Allocator
	mu      sync.Mutex
	w       io.Writer
	err     error              // the first, which ends the trace
	resized map[vmm.Ptr]uint64 // sizes of blocks
}

// write writes a text, unless an error has ended the trace.
func (t *traced) write(text string) {
	if t.err == nil {
		_, t.err = io.WriteString(t.w, text)
	}
}

// line writes what happened in the stream, nil for none, as RMM's logging_resource_adaptor
// does. A stream is a pointer: RMM's replay takes a trace of its default stream only, but it
// reads the hexadecimal number of any other as 0.
func (t *traced) line(action string, ptr vmm.Ptr, size uint64, s *vmm.Stream) {
	at, on := "(nil)", "0"
	if ptr != 0 {
		at = fmt.Sprintf("%#x", uint64(ptr))
	}
	if n := inside.VMM.StreamNumber(s); n != 0 {
		on = fmt.Sprintf("%#x", n)
	}
	t.write(fmt.Sprintf("1,%s,%s,%s,%d,%s\n", time.Now().Format("15:04:05.000000"), action, at, size, on))
}

func (t *traced) Alloc(s *vmm.Stream, n uint64) (Block, error) {
	b, err := t.Allocator.Alloc(s, n)
	action := "allocate"
	if err != nil {
		action = "allocate failure"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.resized, b.ptr) // of a block that was freed elsewhere
	t.line(action, b.ptr, n, s)
	return b, err
}

func (t *traced) Free(s *vmm.Stream, b Block) error {
	return t.free(s, b, func() error { return t.Allocator.Free(s, b) })
}

func (t *traced) FreeNow(b Block) error {
	return t.free(nil, b, func() error { return t.Allocator.FreeNow(b) })
}

// free runs f, which frees b, and notes it. No other line comes between: one that the memory was
// allocated again comes later.
func (t *traced) free(s *vmm.Stream, b Block, f func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := f(); err != nil {
		return err
	}
	t.line("free", b.ptr, t.sizeLocked(b), s)
	delete(t.resized, b.ptr)
	return nil
}

// Resize notes that the block is freed, and allocated again where it lies, with no other line
// between. The memory that a shorter block frees is allocated by others in later lines, so the call runs
// with the lock. A longer one takes what earlier lines freed, so the call runs without it: it may
// map memory, and functions of Device.OnPressure may free blocks.
func (t *traced) Resize(s *vmm.Stream, b Block, n uint64) (Block, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.sizeLocked(b)
	if n > was {
		t.mu.Unlock()
	}
	r, err := t.Allocator.Resize(s, b, n)
	if n > was {
		t.mu.Lock()
	}
	if err != nil || n == was {
		return r, err
	}
	t.line("free", b.ptr, was, s)
	t.line("allocate", b.ptr, n, s)
	t.resized[b.ptr] = n
	return r, nil
}

// sizeLocked is the size of a block: b may have that from before a Resize.
func (t *traced) sizeLocked(b Block) uint64 {
	if n, ok := t.resized[b.ptr]; ok {
		return n
	}
	return b.size
}

func (t *traced) Close() error {
	if err := t.Allocator.Close(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.err
	t.w, t.err = io.Discard, nil
	return wrap(t.Device(), "write trace", 0, 0, err)
}
