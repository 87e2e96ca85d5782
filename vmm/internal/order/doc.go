// Package order owns the order of a device's work: which work comes before which, where a
// stream ends, and which of the driver's calls may meet. It alone records events, queries and
// frees streams, and begins, joins and ends captures.
//
// CUDA ends the process where a wait for a context, or a record or a query of a stream, meets
// another thread's begin or end of a capture, whether or not it was asked before if the stream
// is being captured (docs/contributing/driver-notes.md). So each device has a Gate. A call that changes which
// streams are being captured has the Gate alone; one that looks at the end of a stream or of the
// context shares it, and asks under it. Nothing waits for work under a Gate, where the driver
// can record an event for a whole context: what waits, waits for the event. A record behind a
// stream whose queue is full does block, and begins with it.
//
// A capture that another library begins takes no Gate. Its calls can meet any of ours.
package order

// Files:
//
//	stream.go   Stream: points of a stream's work, what has finished
//	after.go    the last event of each stream that some work comes after
//	fence.go    Fence: events from a pool, recorded at the end of work
//	capture.go  captures: how they begin, which streams are in one, how they end
//	gate.go     Gate: keeps captures apart from records, queries and waits
//	room.go     waiting for room in a stream's queue
//	device.go   Device: the driver's calls that must not meet a capture; which are refused then
