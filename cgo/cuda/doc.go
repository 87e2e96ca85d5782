// Package cuda is the CUDA driver as a driver.Driver. It is the only place that
// knows CUDA's names and numbers.
//
// libcuda is opened with dlopen at the first call of [Default], so a program can
// be built and started where there is none. Without cgo, or on another system than
// Linux, Default returns driver.ErrNoDriver.
package cuda

// Files:
//
//	abi.h                 CUDA's types and numbers, by hand, compared with NVIDIA's header
//	symbols.h             every symbol that is called, with its version; a new call begins here
//	shims.h               one C function for each call: it pushes the context, works and pops it
//	internal.h            what the C files share
//	load.go, .c           finding and loading libcuda; Default and Load
//	driver.go             Driver: what all devices share
//	device.go, .c         Device: Open, Close; the context that calls push
//	info.go, .c           Devices and Supports
//	result.go             Result: what libcuda returns, as an error; the library's name
//	errorkinds.go         which error of package driver a Result is, such as an illegal address
//	handletable.go        the streams, events, modules and graphs that exist
//	memory.go, .c         reserving, creating, mapping
//	access.go, .c         SetAccess and Access
//	export.go, .c         Export and Import, dma-buf, fabric
//	peers.go, .c          pairs of devices
//	copy.go, .c           CopyIn, CopyOut, Copy, Fill
//	copy2d.go, .c         copies of rows with a pitch
//	copypeer.go, .c       CopyPeer
//	stream.go, .c         streams
//	event.go, .c          events
//	graph.go, .c          captures and graphs
//	module.go, .c         modules; functions, their attributes and limits
//	launch.go, .c         launches
//	streammemops.go, .c   WriteValue and WaitValue
//	allocator.go, .c      plain memory
//	hostallocator.go, .c  page-locked memory
//	pooler.go, .c         the driver's pools
//	poolsharer.go, .c     pools in other processes
//	legacyipc.go, .c      handles of plain memory and of events; how often one is open
//	stub.go               builds without cgo, and systems other than Linux
