package fakectl

// Live counts what is alive in the fake driver. Its zero value is what a test
// that gave everything back sees.
type Live struct {
	Handles, Reservations, Mappings int
	Contexts                        int // references to primary contexts
	Streams, Events, Graphs         int
	Plain, Pinned                   int // pieces of memory
	Pushed                          int // contexts on the stacks of all threads
}
