package driver

// StreamMemOps is a Device whose streams can write words of memory and wait for
// them. Tests make a stream wait for a pinned word that the host writes later, to
// hold its work back; vmmbench does, to keep queueing out of its timings.
//
// A stream must never wait for a word that another process writes: when that
// process dies, the stream and every synchronize of its context hang.
type StreamMemOps interface {
	// WriteValue queues a store of v at p, width 4 or 8 bytes, p aligned to it.
	WriteValue(s Stream, p Ptr, v uint64, width int) error
	// WaitValue makes later work of s wait until the word at p minus v is not
	// negative, as a signed number of that width.
	WaitValue(s Stream, p Ptr, v uint64, width int) error
}
