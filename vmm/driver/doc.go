// Package driver is the seam between cuvmm and whatever owns the memory, as
// database/sql/driver is for databases. It holds two interfaces, the plain
// types they speak in, and the errors they answer with. It imports nothing of
// CUDA and nothing of the packages above it.
//
// [Driver] is addresses and physical memory. None of its calls needs a context
// and none makes one, so a process that only owns memory costs no context.
// [Device], from Driver.Open, is what needs one: copies, fills, streams,
// events. Optional abilities are interfaces of their own, one in each file; an
// ability that is absent and one that answers [ErrNotSupported] are the same
// answer, because wrappers have every method.
//
// Memory goes through these states, one call a transition:
//
//	Reserve      Map       SetAccess
//	------> Reserved ----> Mapped ----> Accessible
//	         |  ^                            |
//	   Free  v  +----------------------------+
//	                       Unmap
//
// Applications use package vmm. This package is for those who write a driver,
// wrap one (drivertest.Inject), or test one (drivertest.Memory and Async).
package driver
