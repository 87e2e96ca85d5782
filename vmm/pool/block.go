package pool

import "github.com/cuvmm/cuvmm/vmm"

// Block is memory that a pool allocated. It is a value: copies of it are the same block. Its
// zero value is no block.
type Block struct {
	ptr  vmm.Ptr
	size uint64
	in   *extent
	seq  uint64
}

// Ptr is the first address; 0 for a block of 0 bytes.
func (b Block) Ptr() vmm.Ptr { return b.ptr }

// Size is how many bytes were asked for.
func (b Block) Size() uint64 { return b.size }

type extent struct{}
