package pool

import "github.com/cuvmm/cuvmm/vmm"

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

// MemoryArg sets m to the block as an argument of a kernel.
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
	p.res.MemoryArg(m, uint64(b.ptr-p.base), b.size)
}
