package pool

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

// Block is memory that a pool allocated. It is a value: copies of it are the same block. Its
// zero value is no block.
type Block struct {
	ptr  vmm.Ptr
	size uint64
	in   *owner
	seq  uint64 // no two blocks of a pool ever have the same
}

// Ptr is the first address; 0 for a block of 0 bytes.
func (b Block) Ptr() vmm.Ptr { return b.ptr }

// Size is how many bytes were asked for, or what Find has found.
func (b Block) Size() uint64 { return b.size }

// MemoryArg sets m to the block as an argument of a kernel. One that was freed is ErrInvalid there,
// also if its memory is another block's by now.
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
	if !b.isAllocated() {
		m.Refuse(errFreed)
		return
	}
	p.res.MemoryArg(m, uint64(b.ptr-p.base), b.size)
}

// errFreed is what a launch returns whose argument was freed.
var errFreed = fmt.Errorf("%w: the block was freed", vmm.ErrInvalid)

// isAllocated says whether a block of a Pool was not freed yet.
func (b Block) isAllocated() bool {
	if sl := b.in.slab; sl != nil {
		return sl.seqs[sl.index(b.ptr)].Load()&numberBits == b.seq
	}
	return b.in.ext.seq.Load()&numberBits == b.seq
}
