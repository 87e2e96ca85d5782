package pool

import (
	"fmt"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// Block is memory that a pool allocated. It is a value: its copies are the same block. Its zero
// value is no block.
type Block struct {
	ptr  vmm.Ptr
	size uint64
	in   *owner
	seq  uint64 // no two blocks of a pool ever have the same
}

// Ptr is the first address; 0 for a block of 0 bytes.
func (b Block) Ptr() vmm.Ptr { return b.ptr }

// Size is the bytes requested. A block from Find has its full size.
func (b Block) Size() uint64 { return b.size }

// MemoryArg sets m to the block as an argument of a kernel. A freed block is ErrInvalid there, even
// if another block has its memory by now.
func (b Block) MemoryArg(m *vmm.MemoryArg) {
	if m == nil {
		return
	}
	if b.in == nil || b.size == 0 {
		*m = vmm.MemoryArg{}
		return
	}
	p := b.in.pool
	if p == nil { // of a DriverPool, so in no reservation
		*m = vmm.MemoryArg{Span: vmm.Span{Addr: b.ptr, Size: b.size, Access: vmm.AccessReadWrite}, Count: b.size, Stride: 1}
		return
	}
	if b.number().Load()&numberBits != b.seq {
		m.Refuse(errFreed)
		return
	}
	p.res.MemoryArg(m, uint64(b.ptr-p.base), b.size)
}

// errFreed is what a launch returns whose argument was freed.
var errFreed = fmt.Errorf("%w: the block was freed", vmm.ErrInvalid)

// number is where the Pool keeps the block's number; nil for a block of 0 bytes.
func (b Block) number() *atomic.Uint64 {
	switch sl := b.in.slab; {
	case sl != nil:
		return &sl.seqs[sl.index(b.ptr)]
	case b.in.ext != nil:
		return &b.in.ext.seq
	}
	return nil
}

// note notes in a device's history what has happened to a block of a pool of a name; s is nil without a stream.
// Where that costs much, callers ask KeepsBlocks first, which is no call.
func (b Block) note(l *history.Log, what history.Kind, s *vmm.Stream, name string) {
	l.AddBlock(what, uint64(b.ptr), b.size, inside.VMM.StreamNumber(s), name)
}
