package pool

import (
	"cmp"
	"fmt"
	"math/bits"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// Options configures a pool; its zero value is the default.
type Options struct {
	// Name is as in vmm.RangeOptions.
	Name string
	// Max limits the bytes of memory that the pool holds, rounded down to whole chunks. It must be
	// at least one chunk. 0: the device's memory. Beyond Max, Alloc returns ErrOutOfMemory.
	Max uint64
	// ReleaseThreshold is how many bytes of memory the pool keeps at a synchronisation; see
	// Pool.SetReleaseThreshold.
	ReleaseThreshold uint64
	// Align is the alignment of blocks in bytes, a power of two from 16 to the granularity. Above
	// 32 KiB there are no slabs, and each block takes at least Align bytes. 0: 256.
	Align uint64
	// ChunkSize is the size in bytes of the pieces of memory that the pool creates and maps, a
	// power of two that is a multiple of the granularity. 0: about 1/1024 of the device's
	// memory, from one granule to 8 MiB.
	ChunkSize uint64
	// Addresses is how many bytes of addresses to reserve. 0: four times Max, or four times the
	// device's memory if that is less. With ample addresses a block fits whenever there are enough
	// idle chunks, because memory moves to where a block needs it.
	Addresses uint64
	// NoReuse is the policies that are off at first; see SetReuse.
	NoReuse Reuse
	// Share makes the memory shareable. It cannot be changed later. Such memory neither comes from
	// the device's cache nor goes there.
	Share vmm.Share

	// OnOOM is called when Alloc finds no memory. n is how many bytes Alloc was asked
	// for. OnOOM may free blocks, and returns whether to try once more. It is called with no
	// lock held, by several goroutines at once. If it panics, or ends its goroutine, Alloc ends
	// with it, and has changed nothing.
	OnOOM func(s *vmm.Stream, n uint64) (retry bool)
}

// resolve checks the options and fills in the defaults.
func (o *Options) resolve(gran, memory uint64) error {
	o.Align = cmp.Or(o.Align, 256)
	if bits.OnesCount64(o.Align) != 1 || o.Align < 16 || o.Align > gran {
		return fmt.Errorf("%w: an alignment of %d", vmm.ErrInvalid, o.Align)
	}
	if o.NoReuse&^ReuseAll != 0 {
		return fmt.Errorf("%w: reuse %#x", vmm.ErrInvalid, o.NoReuse)
	}
	gran = max(gran, pageSize)
	if o.ChunkSize == 0 {
		o.ChunkSize = max(gran, min(8<<20, uint64(1)<<bits.Len64(memory/2048)))
	}
	if o.ChunkSize%gran != 0 || o.ChunkSize > memory || bits.OnesCount64(o.ChunkSize) != 1 {
		return fmt.Errorf("%w: chunks of %d bytes", vmm.ErrInvalid, o.ChunkSize)
	}
	whole := memory / o.ChunkSize * o.ChunkSize
	if o.Max == 0 || o.Max > whole {
		o.Max = whole
	}
	if o.Max = o.Max / o.ChunkSize * o.ChunkSize; o.Max == 0 {
		return fmt.Errorf("%w: Max is less than a chunk of %d bytes", vmm.ErrInvalid, o.ChunkSize)
	}
	o.Addresses = max(cmp.Or(o.Addresses, 4*o.Max), o.ChunkSize) / o.ChunkSize * o.ChunkSize
	return nil
}

// resolveDriver checks the options for a pool of the driver's.
func (o *Options) resolveDriver() (err error) {
	if o.Name, err = inside.VMM.CopyName(o.Name); err != nil {
		return err
	}
	switch {
	case o.Align != 0 && bits.OnesCount64(o.Align) != 1, o.NoReuse&^ReuseAll != 0:
		return fmt.Errorf("%w: an alignment of %d, reuse %#x", vmm.ErrInvalid, o.Align, uint8(o.NoReuse))
	case o.Align > 256, o.ChunkSize != 0, o.Addresses != 0:
		return fmt.Errorf("%w: a pool of the driver with Align above 256, ChunkSize or Addresses", vmm.ErrNotSupported)
	}
	return nil
}
