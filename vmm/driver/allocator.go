package driver

// Allocator is a Device that also has ordinary device memory: cuMemAlloc and its
// stream-ordered kin, or an anonymous mapping. vmmbench compares with it.
type Allocator interface {
	AllocPlain(n uint64) (Ptr, error)
	// FreePlain may wait for the whole device, as cuMemFree does.
	FreePlain(Ptr) error
	// AllocAsync takes memory from the device's default pool, in stream order.
	AllocAsync(n uint64, s Stream) (Ptr, error)
	FreeAsync(Ptr, Stream) error
	// SetPoolThreshold is how many bytes the default pool keeps at a synchronise.
	SetPoolThreshold(n uint64) error
}
