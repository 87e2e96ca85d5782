// Package fakecuda builds a libcuda that needs no GPU, for tests of the binding:
// with which arguments, in which version and with which context current it is
// called, and what each error leads to. Work is done when the call that queues it
// returns, so nothing can be learnt here about order. The host driver and the card
// are for that.
//
// The library is C, in lib. A test opens it as the binding opens NVIDIA's, and
// controls it through [Library]. That takes C too. It is not under cgo: other modules
// may import what is there, and must not use what injects faults.
//
//	path := fakecuda.Build(t)
//	fake := fakecuda.Open(t, path)
//	d, err := cuda.Open(path)
//	fake.Fail("cuMemMap", 2, 2)
package fakecuda

// Files:
//
//	fakecuda.go        Build, Open, Library: what a test does with the fake
//	control_unsafe.go  the calls of control.h
//	control_other.go   systems without cgo
//	lib/fake.h         what the C files share: the state, how many devices and bytes there are
//	lib/control.h      what a test controls
//	lib/state.c        the record of calls, planned faults, what a test controls
//	lib/context.c      devices and their attributes, such as the compute capability; contexts
//	lib/address.c      reserve, map, set access; where an address lies
//	lib/memory.c       create, release, export, import
//	lib/copy.c         copies and fills; plain and pinned memory
//	lib/stream.c       streams, events, words in memory; what captures forbid
//	lib/graph.c        captures and graphs
//	lib/module.c       modules, functions, launches
//	lib/pool.c         pools of stream-ordered memory
//	lib/peer.c         pairs of devices
//	lib/ipc.c          handles of memory, events and pools between processes
//	lib/dmabuf.c       address spans as dma-buf
