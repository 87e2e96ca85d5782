package fakectl

// Live counts what is alive in the fake driver. Its zero value is what a test
// that gave everything back sees.
type Live struct {
	Handles, Reservations, Mappings int
	Contexts                        int // references to primary contexts
	Peers                           int // contexts whose plain memory a context was let into
	Streams, Events, Graphs         int
	Plain, Pinned                   int // pieces of memory
	Pushed                          int // contexts on the stacks of all threads
}

// Link is what is between two devices.
type Link int

// Links, as the fake driver numbers them. All are NVLink until told otherwise.
const (
	NVLink Link = iota
	PCIe
	NoPath
)
