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

// Files:
//
//	driver.go           Driver and Device: what every driver does
//	types.go            Ptr, Handle, Access, Prop, Info, Feature and the other plain types
//	errors.go           the errors, and CallError
//	wrapper.go          Wrapper and IdentityOf: a driver in front of another
//	allocator.go        Allocator: ordinary device memory, as cuMemAlloc
//	contextrecorder.go  ContextRecorder: events of a whole context
//	copier2d.go         Copier2D: copies of rows with a pitch
//	fabricsharer.go     FabricSharer: handles for other hosts
//	freereporter.go     FreeReporter: when shared memory is free
//	grapher.go          Grapher: capturing streams; Graph and GraphExec
//	hostallocator.go    HostAllocator: page-locked host memory
//	hostviewer.go       HostViewer: memory that the CPU addresses directly
//	launcher.go         Launcher: modules, functions, launches; priorities of streams
//	legacyipc.go        LegacyIPC: handles of plain memory and of events
//	peers.go            Peering and LegacyPeers: pairs of devices
//	pooler.go           Pooler: the driver's own pools; PeerCopier
//	poolsharer.go       PoolSharer: pools in other processes
//	rangeexporter.go    RangeExporter: address spans as dma-buf
//	streammemops.go     StreamMemOps: streams that write and wait for words
