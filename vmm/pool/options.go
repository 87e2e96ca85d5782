package pool

import (
	"io"

	"github.com/cuvmm/cuvmm/vmm"
)

// Options is how to make a pool; its zero value is the default.
type Options struct {
	// Max is the most bytes that the pool may reserve, rounded down to whole chunks. 0: no
	// bound but the device's memory. Beyond it Alloc returns ErrOutOfMemory.
	Max uint64
	// ReleaseThreshold is how many bytes stay reserved at a synchronisation; see
	// Pool.SetReleaseThreshold.
	ReleaseThreshold uint64
	// Align is the alignment of blocks, a power of two from 16 to the granularity. 0: 256.
	Align uint64
	// ChunkSize is the size of the pieces of memory that the pool creates and maps, a power
	// of two that is a multiple of the granularity. 0: 1/1024 of the device's memory, from one granule to
	// 8 MiB.
	ChunkSize uint64
	// Addresses is how many bytes of addresses to reserve. 0: four times the device's
	// memory, or Max if that is less. Memory moves to where a block needs it, so with ample
	// addresses a block fits wherever there is memory.
	Addresses uint64
	// NoReuse is the policies that are switched off at first; see SetReuse.
	NoReuse Reuse
	// Share makes the memory shareable. It cannot be changed later. Such memory is never
	// taken from what the device caches, nor cached.
	Share vmm.Share

	// OnOOM is called when Alloc finds no memory for n bytes. It may free blocks, and
	// returns whether to try once more. It is called with no lock held, by several goroutines
	// at once. It must not panic.
	OnOOM func(s *vmm.Stream, n uint64) (retry bool)
	// Trace is written a line for each call: Action,Pointer,Size,Stream, in RMM's form. The
	// pool calls Write under a lock; what Write returns is reported by Close.
	Trace io.Writer
	// SampleStacks records where every so many bytes were allocated; see Pool.Samples. 0:
	// none.
	SampleStacks uint64
}
