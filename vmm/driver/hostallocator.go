package driver

// HostAllocator is a Device that can allocate host memory which copies reach directly.
// Neither call destroys a capture.
type HostAllocator interface {
	// AllocHost gives n bytes of page-locked memory, as an address for Copy and
	// as a slice for Go. Every device can use it. The slice dies with FreeHost.
	AllocHost(n uint64) (Ptr, []byte, error)
	// FreeHost may wait for the whole device.
	FreeHost(Ptr) error
}
