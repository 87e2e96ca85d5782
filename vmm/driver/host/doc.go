// Package host is host memory as a driver: growable, shareable arrays in
// ordinary memory, under the rules of a GPU. It is no mock. Programs without a GPU
// run on it, and what breaks a rule here would break it on the card.
//
// It is pure Go on Linux; elsewhere every call returns driver.ErrNotSupported.
// All devices of a [Driver] share the process's one page table. So the access of
// each device to each mapping is kept in a table, and the page table allows what
// any of the devices may do:
//
//	on the card              here
//	address range            anonymous mapping without access
//	physical memory          memfd, sealed against shrinking and growing; small chunks
//	                         that cannot be shared are parts of large ones
//	map                      MAP_FIXED|MAP_SHARED over the range, without access
//	set access               the table; mprotect with what any device may do
//	copies, fills            checked against the table when they are queued
//	capacity of a device     a count, charged at Create and AllocPlain
//	stream                   a queue and, while it is not empty, a goroutine
//	illegal address          all devices count as lost; in copies no fault happens, and
//	                         in a kernel it becomes a panic, which is recovered
//	exported descriptor      the memfd opened again, for reading only if shared so
//	primary context          what the open Devices of an ordinal share
//	kernel                   a Go function that does the work of a whole grid
//	capture                  a list of work; a wait destroys it, and so does
//	                         allocating plain memory unless it is relaxed
//	graph                    that list; a launch queues all of it on one stream
//	plain memory             parts of a sparse memory file of the context, open to every device
//	pinned memory            anonymous mappings, open to every device
//	pool                     anonymous mappings, or where it can be shared parts of a sparse
//	                         memory file, which are cached when they are freed
//	handle of memory         where another process of the user finds the file, by /proc, and
//	                         the part; a page behind the part says that it is in use
//	event for others         a page of memory, in which records are numbered
//	peer access to it        recorded; nothing needs it
//
// A Driver stands for a process. If memory is unmapped under queued work of one
// device, all devices of the Driver are lost, as CUDA loses all devices of a
// process. A new Driver is not affected.
//
// Where the outcome on the card depends on timing, this driver always takes the bad
// one: work runs late, and memory that is unmapped under it loses the devices. So does the
// launch of a graph whose memory is not there any more.
//
// Different from the card:
//   - The system provides memory at the first touch, not at Create. So all devices
//     together can promise more than the machine has.
//   - Memory that another process created is counted only there.
//   - A launch of a graph runs its work in the order in which it was captured, one piece
//     at a time, whichever streams captured it. So work must not wait for a value that
//     work captured later writes.
//   - A kernel cannot be cut short: an unmap of its memory, a Close of the last Device and
//     ResetContext wait for its end. It must not call this package.
//   - Memory that a kernel uses and that [driver.Launch] does not name is not checked. A
//     fault there is that of an illegal address. But what another device may use, a
//     kernel reads and writes too, and a goroutine that a kernel starts ends the program
//     with its fault.
//   - A pool never splits or joins blocks, takes a cached one that is up to twice as large as
//     asked for, and follows no dependency between streams. Its memory can be no part of a
//     capture. Pools end with the context.
//   - A wait for what another process has recorded looks at that page up to every 200 us. If
//     the process is known to have died, what it recorded counts as reached. That is not known
//     while this process has no descriptor to look with: then the wait goes on, until it has one
//     or the context ends. The handle of an event whose maker has died opens an event that was
//     never recorded and is this process's alone; on the card it may still be shared with others
//     that have it open.
//   - CloseMem under queued work loses the devices. A handle is for processes with the same
//     user, in the same pid namespace, whose /proc shows it: others do not open it.
//   - A pool that can be shared gives memory back to the system, also while another process
//     has it imported, which then reads zeros. Importing memory that was freed is ErrInvalid.
//   - What a thread-local capture forbids its thread is forbidden to all threads,
//     because goroutines change threads.
//   - A fault through a slice of HostBytes ends the program.
//
// The kernel limits the mappings of a process (vm.max_map_count). Each chunk takes
// one, and so does each gap between chunks. Small chunks side by side take one
// together, if they were created one after the other and have the same access; to
// unmap one in the middle, or to change its access, then takes up to two more. They
// are counted, for all Drivers together and with what else the process has mapped, and
// refused with driver.ErrLimit before the kernel would refuse: at the kernel's limit no
// undo works. A part of what stays spare is for calls that only give memory up.
//
// It limits the descriptors too (RLIMIT_NOFILE). A chunk of 2 MiB and more takes one,
// and so does each chunk that can be shared. Smaller chunks that cannot be shared take
// one for each 64 MiB. A context with plain memory takes one, and so does each pool that can
// be shared, imported ones too, and each event with EventInterprocess. At the limit Create and
// Export return driver.ErrLimit: larger chunks help.
//
// Files count against RLIMIT_FSIZE: no chunk and no block of plain memory can be larger.
//
// All Drivers together reserve at most 96 TiB, which leaves addresses for Go's heap.
//
// Where the system has promised more memory than it has, touching a page that it
// cannot provide ends the process with SIGBUS. Large copies into untouched memory
// return driver.ErrOutOfMemory instead. Small ones, fills, copies on streams, and
// stores through HostBytes cannot.
//
// Exported memory counts as used until its last descriptor and mapping are gone. The
// system does not notify about that. So a timer asks for memory that was released here,
// at first after 10 ms and then up to once a second, until none is left. It goes on
// after the last Device has closed, because other processes keep the memory beyond
// that. A Create without a descriptor left, and a call that runs out of memory or reads
// MemInfo, ask at once.
//
// To ask is to take a lease (fcntl F_SETLEASE), which the kernel grants only where
// nothing else is open. So sharing is not supported where fs.leases-enable is 0. A
// process that has changed its user gets no lease on memory that it created before:
// that memory counts as used until the process has its old user again. Opening the file
// during a lease makes the kernel send this process a SIGURG, which does nothing unless
// it is handled.
//
// Lock order: Driver.memMu (addresses, handles, access), then Driver.workMu
// (streams, events, captures), then the arenas of small chunks, then the process's count
// of mappings and addresses. None is held while bytes move. Work is checked and queued
// under memMu held for reading, and memory is unmapped under memMu held for writing. So
// an unmap sees all work that has passed a check.
package host

// Files:
//
//	config.go          Config; Default; the options in a device's name
//	driver.go          Driver and New: the state of all devices; the defaults of Config
//	info.go            Devices: what the machine has
//	machine.go         how much memory the machine, or its control group, gives this process
//	processlimits.go   mappings and addresses of all Drivers of the process; how many stay spare
//	device.go          device: Open, Close, MemInfo, Sync, Do
//	context.go         what the open Devices of one ordinal share; how it stops
//	reset.go           ResetContext
//	lost.go            lost devices: which use of memory loses one
//	errors.go          the errors of calls that break a rule
//	reserve.go         Reserve and Free: regions of addresses
//	mapping.go         Map and Unmap
//	borders.go         where the kernel's mappings meet; merged changes of access
//	access.go          SetAccess and Access, and what the page table then allows
//	memory.go          Create and Release: a memfd, or a part of an arena
//	arena.go           arenas: one memfd for many small memories
//	untouched.go       writing to memory that nothing has touched yet, through its file
//	freed.go           Freed: shared memory that is free
//	orphans.go         memory that was released here and that other processes still have
//	export.go          Export and Import of descriptors
//	copy.go            CopyIn, CopyOut, Copy, Fill
//	copy2d.go          copies of rows with a pitch
//	copypeer.go        CopyPeer
//	stream.go          streams: queues, and the goroutine of one that has work
//	defaultstreams.go  the default streams, by CUDA's numbers
//	meetings.go        counting the calls that are under way with a stream or a context
//	event.go           events of one process
//	sharedevent.go     events of several processes
//	capture.go         captures of streams
//	graph.go           graphs, and launching them
//	kernel.go          modules, functions and launches of Go kernels
//	streammemops.go    WriteValue and WaitValue
//	allocator.go       plain and pinned memory
//	pool.go            pools: blocks, and what they cache
//	pooler.go          the driver's calls on pools
//	freeorder.go       which frees in other streams a stream comes after
//	poolsharer.go      pools in other processes; the tokens of their blocks
//	sparse.go          sparse files, of which blocks that other processes may open are parts
//	legacyipc.go       handles of plain memory and of events; how often one is open
//	peers.go           pairs of devices: what is possible, and legacy access
//	process.go         by which word a process is named, and whether it is known to have ended
//	sys_unsafe.go      mmap and its kin, and memory by its address
//	unsupported.go     calls that host memory does not support
//	other.go           systems other than Linux
