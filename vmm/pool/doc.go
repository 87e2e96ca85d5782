// Package pool allocates blocks of GPU memory in stream order, as cudaMallocAsync and CUDA's memory
// pools do, but on memory that grows in place. Many short-lived blocks share one address range.
// Memory that no block uses moves to where the next block needs it.
//
// # Which type to use
//
//	Pool        memory of this library: blocks can be resized and found, and are arguments of
//	            kernels whose memory is held; needs what vmm.Range needs
//	DriverPool  a pool of the driver's own, for a program whose other libraries allocate from
//	            it, too: DriverDefault, DriverCurrent, or NewDriver
//	Allocator   either of them: the parameter of a function that allocates
//	vmm.Range   (package vmm) one thing that grows, at an address of its own
//
// A [Block] is a value: an address and a size. It is allocated until Free or FreeNow.
//
// # States of memory in a Pool
//
//	state    memory is there  used next by
//	hole     no               a block, for which chunks are mapped there
//	bad      no               nothing before TrimTo: the driver has refused to map there
//	idle     yes              any stream; whole chunks move to a hole, or are given back
//	pending  yes              the stream in which it was freed, and streams that wait for it
//	block    yes              its caller, until Free or FreeNow
//	slab     yes              blocks of up to 64 KiB, all of one size and of one stream, the home
//	busy     maybe            the one call that maps, unmaps or takes it
//
// A block freed in a stream is pending, because work of that stream may still use it. The memory is
// idle once a call of package vmm has shown that this work has ended.
//
// Free blocks of a slab stay with the slab. Its home can reuse them at once, in its order. If there
// is no other memory they are lent to other streams. A block that is lent to, or freed in, another
// stream than the home is a remote block. That stream can reuse it at once; others, finally the
// slab, once that stream's work has ended or they come after it.
//
// The long block that a stream freed last is kept for its next one of that size. Any other search
// for memory makes it pending first.
//
// Chunks move and are given back whole, so a chunk stays while a part of it is not idle.
//
// # Stamps
//
// A stamp is vmm.Stream.Point, plus one, when memory was freed in that stream. All work that may
// use the memory has ended when Finished of the stream, plus one, is above the stamp. Another
// stream comes after that work when its After of the stream, plus one, is above the stamp. The
// stamp 0 is idle.
//
// # Concurrency
//
// All methods of Pool and DriverPool may be called by several goroutines at once. Streams that
// allocate short blocks do not wait for each other. One block is freed or resized by one call at
// a time: of two Frees one returns ErrDoubleFree.
package pool

// Files:
//
//	allocator.go   Allocator, Reuse, Stats: what Pool and DriverPool have in common
//	options.go     Options, their defaults and checks
//	errors.go      the errors; why a block cannot be freed; the operation, address and size in an error
//	pool.go        Pool: its fields, New; Alloc, Free, FreeNow; how a block stops being allocated; which are sampled
//	block.go       Block; what a history gets of one
//	search.go      the steps of a search for memory, and the loop that carries them out; OnOOM
//	look.go        one look: idle memory, other streams' memory, waits, why there is none
//	heap.go        taking, cutting, joining and freeing runs of memory; making and removing holes
//	extent.go      a run of addresses and its kind; free lists; regions
//	bins.go        free runs and holes by size; which one is taken
//	chunks.go      growth: where chunks are mapped, which idle ones go (also for TrimTo), creating new ones, failures
//	lastfreed.go   the long block that a stream freed last, for its next one without Pool.mu
//	small.go       short blocks: allocating and freeing in slabs; slabs of closed streams
//	remote.go      short blocks that were freed in other streams, and blocks lent to other streams
//	slab.go        one slab, and a stream's lists of them
//	classes.go     the sizes of blocks in slabs, and how long a slab of each is
//	stream.go      what a pool knows of a stream: counts, fences, how far it has come
//	resize.go      Resize
//	find.go        Find: the block of an address
//	lookup.go      Lookup: the pool of an address, also of the driver's
//	trim.go        TrimTo, the release threshold, giving memory back under pressure: when, and how much
//	admin.go       Device, Reservation, SetReuse, Grant and Revoke, Stats, ResetPeaks
//	usage.go       Usage: what chunks, streams and sizes of blocks have
//	trace.go       Trace
//	close.go       Close
//	driverpool.go  DriverPool: NewDriver, DriverDefault, DriverCurrent; FreePlain
//	drivermem.go   what the driver has reserved counts against bounds; TrimTo
//	hold.go        HoldBlock of a Pool: how a block is kept from being freed
//	driverhold.go  what package ipc needs of a DriverPool: Hold, HoldBlock, and its door

// Lock order:
//
//	Pool.closeMu           Close, and calls that wait for its outcome
//	  stream.mu            a stream's slabs, and its remote blocks; of several the older first
//	    Pool.mu            extents, free lists, holes, chunks, the list of streams
//	      locks of package vmm
//
//	DriverPool.mu          shared by all calls but Close; held across driver calls
//	  DriverPool.liveMu
//
// Pool.mu is held while events are recorded, waited for by a stream and asked, but not while
// memory is created, mapped, unmapped or released, nor while a caller waits. Pool.underWay counts
// the calls that work on memory without it: that is kindBusy meanwhile, and Close waits for them.
// No function but search.without releases a lock of its caller. These are held across a wait for
// the device: Pool.closeMu, and DriverPool.mu, shared, by Grant and Revoke. None is held while
// Options.OnOOM runs. traced.mu is above all of them: it is held across a free, a Resize to fewer
// bytes, and Write of the trace's writer.
