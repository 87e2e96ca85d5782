package driver

// HostViewer is a Driver whose memory the CPU can address directly.
type HostViewer interface {
	// HostBytes is [p, p+n) as a slice. It is valid as long as that span stays
	// mapped; touching it afterwards, or beyond the access that is set, ends
	// the process. p+n must lie in one reservation and be mapped throughout.
	HostBytes(p Ptr, n uint64) ([]byte, error)
}
