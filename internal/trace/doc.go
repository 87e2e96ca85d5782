// Package trace has the sequences of allocations by which pools are compared: made from a
// seed, or recorded from a program and read from a file. Replay runs one on a pool.
//
// A file has the form that pool.Trace writes, which is RMM's:
//
//	Thread,Time,Action,Pointer,Size,Stream
//	1,12:00:00.000001,allocate,0x7f0000000000,1024,0x5555aa00
//	1,12:00:00.000002,allocate failure,(nil),17179869184,0x5555aa00
//	1,12:00:00.000003,free,0x7f0000000000,1024,0x5555aa00
//
// It says nothing of waits: a trace that is read has none, those that are made have. A trace
// frees every block exactly once.
package trace

// Files:
//
//	trace.go        Trace and Op; scaling one
//	generate.go     Generators: traces made from a seed
//	training.go     the trace of a training run
//	serving.go      the trace of a server for a language model
//	adversarial.go  traces that make a pool fragment
//	read.go         reading RMM's logs
//	replay.go       replaying a trace on a pool
