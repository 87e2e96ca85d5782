package driver

// Allocator is a Device that also has ordinary device memory: cuMemAlloc and its stream-ordered
// kind, or an anonymous mapping on the host. vmmbench compares mapped memory with it.
type Allocator interface {
	// AllocPlain allocates as cuMemAlloc does.
	AllocPlain(n uint64) (Ptr, error)
	// FreePlain may wait for the whole device, as cuMemFree does.
	FreePlain(Ptr) error
	// AllocAsync allocates from the current pool of the stream's device, in stream order;
	// see Pooler.
	AllocAsync(n uint64, s Stream) (Ptr, error)
	// FreeAsync frees memory of a pool, or of AllocPlain, in the order of a stream: no
	// later work of the stream may use it.
	FreeAsync(Ptr, Stream) error
}
