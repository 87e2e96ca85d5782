package driver

// HostViewer is a Driver whose memory the CPU can address directly.
type HostViewer interface {
	// HostBytes returns [p, p+n) as a slice, also an empty one at p. That span must lie in one
	// reservation and be mapped throughout. The slice is valid as long as the span stays mapped.
	// Touching it afterwards, or beyond the access that is set, ends the process.
	HostBytes(p Ptr, n uint64) ([]byte, error)
}
