// Package trace has the sequences of allocations by which pools are compared: made from a
// seed, or recorded from a program and read from text. Replay runs one on a pool. No memory
// is touched.
//
// The text has a line for each operation. The n-th allocation, from 0, is block n.
//
//	cuvmm pool trace 1   the first line
//	+ SIZE STREAM        allocate bytes for a stream
//	- BLOCK STREAM       free in the order of a stream
//	s                    wait for all streams
//
// A trace frees every block exactly once.
package trace
