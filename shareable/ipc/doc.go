// Package ipc shares memory in CUDA's own older ways: legacy handles of plain memory and of
// events, and pools of the driver's that other processes import. Programs in other languages
// that use these calls of CUDA's can be at the other end. On host memory the same programs
// run, with processes of this library.
//
//	cuIpcGetMemHandle, cuIpcOpenMemHandle        Memory.Handle, Open
//	cuIpcGetEventHandle, cuIpcOpenEventHandle    EventHandle, OpenEvent
//	cuMemPoolExportToShareableHandle             ExportPool
//	cuMemPoolImportFromShareableHandle           ImportPool
//	cuMemPoolExportPointer                       ExportPointer
//	cuMemPoolImportPointer                       Pool.Import
//
// Blocks of this library's own pools, of which the driver knows nothing, have no handle: package
// shareable passes them under a name, by Server.PublishSpan and Attach. There the order of the
// frees, which is a rule below, is enforced.
//
// Nothing here tells the other process when memory may be read: an event does, whose handle
// is passed on like that of the memory. Package shareable has views that follow growth, names
// and lengths, and needs none of this.
//
// # Who frees first
//
// The process that imports closes its Memory, or frees its Block, before the process that
// made the memory frees that. What the driver does otherwise is undefined. Only within one
// process is that seen: there freeing a block that is imported still returns ErrBusy.
//
// # Trust
//
// A handle, a token and a descriptor of a pool carry no rights: any process of the machine
// that gets hold of one can read and write the memory, as far as the driver lets it. A file
// of WriteFile can be read by this user only.
package ipc

// Files:
//
//	errors.go         the errors and their texts
//	handle.go         Handle, its text and its files; what is refused before the driver is asked
//	nowait_linux.go   how a file is opened without a wait for another process
//	nowait_other.go   the same on other systems
//	text.go           what the texts of handles and tokens have in common
//	memory.go         Memory: Alloc, Open, Close; the drivers count how often a handle is open
//	event.go          EventHandle, OpenEvent
//	token.go          Token, which the driver makes; ExportPool, ExportPointer
//	pool.go           ImportPool, Pool
//	block.go          Block, and how several Blocks of one token are freed
//	registry.go       which tokens this process has exported and imported

// Lock order:
//
//	Memory.mu
//	Pool.mu
//	  registry.mu
//	    the locks of pool.DriverPool
//
// Memory.mu and Pool.mu are held across driver calls: no import meets a free of the same memory. No
// lock is held across a wait for work, since functions of vmm.Device.OnSync may call this package.
