// Package driver is the seam between cuvmm and whatever owns the memory, as
// database/sql/driver is for databases. It has two interfaces, their plain
// types, and the errors that they return. It imports nothing of CUDA and
// nothing of the packages above it.
//
// [Driver] is addresses and physical memory. None of its calls needs a context
// and none makes one, so a process that only owns memory has no context.
// [Device], from Driver.Open, is what needs a context: copies, fills, streams,
// events. Optional abilities are interfaces of their own, one in each file. An
// ability is absent if the interface is missing or if its calls return
// [ErrNotSupported]; both mean the same, because a [Wrapper] has every method.
//
// Memory goes through these states. Each transition is one call:
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
