package driver

// Allocator is a Device that also has ordinary device memory: cuMemAlloc and its
// stream-ordered kind, or an anonymous mapping on the host. vmmbench compares mapped memory with it.
type Allocator interface {
	// AllocPlain allocates as cuMemAlloc does.
	AllocPlain(n uint64) (Ptr, error)
	// FreePlain may wait for the whole device, as cuMemFree does.
	FreePlain(Ptr) error
	// AllocAsync allocates from the device's default pool, in stream order.
	AllocAsync(n uint64, s Stream) (Ptr, error)
	// FreeAsync undoes AllocAsync, in stream order.
	FreeAsync(Ptr, Stream) error
	// SetPoolThreshold sets how many bytes the default pool keeps at a synchronize.
	SetPoolThreshold(n uint64) error
}
