package driver

// HostAllocator is a Device that can allocate host memory which copies reach directly.
// Neither call destroys a capture.
type HostAllocator interface {
	// AllocHost allocates n bytes of page-locked memory and returns its address for
	// Copy and a slice for Go. Every device can use it. The slice is valid until
	// FreeHost.
	AllocHost(n uint64) (Ptr, []byte, error)
	// FreeHost may wait for the whole device.
	FreeHost(Ptr) error
}
