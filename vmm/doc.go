// Package vmm is growable memory on a GPU, or on the host where there is none. Addresses are
// reserved once, and physical memory is mapped there as it is needed. So memory grows, and its
// address never changes.
//
//	Device       a GPU, or the host                           Open
//	Range        bytes that grow, as a []byte does            Device.NewRange
//	Reservation  addresses in which you map each Chunk        Device.Reserve
//	Chunk        one piece of physical memory                 Device.Create, Device.Import
//	Stream       work that runs in order                      Device.NewStream
//	Event        a point of that work to wait for             Device.NewEvent, Stream.Record
//	Graph        captured work, to be launched many times     Stream.EndCapture
//	Mirror       a copy of device memory in host memory       Device.NewMirror
//	Pinned       page-locked host memory                      Device.AllocPinned
//
// An example:
//
//	dev, err := vmm.Open("auto") // the first GPU, or host memory
//	g, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 30})
//	err = g.Append([]byte("hello"))
//	_, err = g.ReadAt(b, 0)
//
// A Range is a Reservation that chunks fill from the front. Package growable has types on top of
// it: Vector for elements, Rows for rows of a width known at run time.
//
// A [Device] makes everything, and everything must be closed before its Device. The garbage
// collector frees nothing.
//
// # States of a byte of address space
//
//	Reserved -> Mapped -> Accessible -> Retiring -> Reserved
//
// Memory in use is Accessible. Memory that was given up is Retiring while work that may still use
// it runs. For example, Clip makes the chunks beyond Len retire. A Range that grows meanwhile takes
// them back without a driver call, until the driver is asked to unmap them. All addresses of a
// Range that sleeps are Reserved.
//
// Mapped is seen only when an undo failed. Such a chunk is quarantined. So is memory that the
// driver refused to release. [Stats] counts both. Trim, growth that runs out of memory, and Close
// try again.
//
// # Waiting
//
// Unmapping under running work loses the device, and with it all devices of the process. Only a
// new process helps then. So Unmap, Clip, Revoke, a narrowing Grant, Sleep and Close wait first.
// They wait for every device with access, or for the streams that [Reservation.UsedBy] named.
// After UsedBy, Clip leaves the wait to the device's goroutine.
//
// They do not wait for:
//
//   - other contexts, unless UsedBy named their streams;
//   - graphs that other libraries launch later ([GraphExec.Launch] checks its own);
//   - other processes.
//
// While a stream that this package knows is being captured into a graph, such a wait would destroy
// the capture. The call then returns [ErrCapturing], and nothing has changed. A capture on a stream
// that this package does not know is not seen, unless that stream waits for the legacy stream.
//
// When another library calls cuDevicePrimaryCtxReset, the streams and events of the Devices that
// are open on that GPU end. Calls return [ErrContextReset], which is an [ErrDeviceLost], too.
// Mapped memory stays. Close what is open, and all Devices on that GPU; then it opens anew.
//
// # Growth that does not wait
//
// The device's goroutine can map memory before it is needed: see RangeOptions.GrowAhead.
// [Device.SetReleaseThreshold] caches memory that was given up, for later growth.
// [Device.SetLimit] limits what this process takes. The goroutine runs while there is work for it,
// and Device.Close waits for it.
//
// # Peers
//
// [Topology] reports which devices reach each other's memory. [PlanPeers] reports what giving them
// access would do, and [EnablePeers] does it. A grant also holds for memory that is mapped later.
// [EnableLegacyPeers] is for memory of cuMemAlloc or cudaMalloc: CUDA's older peer access between
// contexts, which does nothing for mapped memory.
//
// # Copies of pageable host memory
//
// [Range.Append], [Device.CopyIn] and their kin copy 32 MiB or more through pinned memory of the
// library's own, on several processors at once, if the CPU cannot address the device's memory.
// [Stream.CopyIn] and [Range.AppendOn] use it to copy in a stream's order. At most 128 MiB are
// pinned for a device, from the first such copy to the last Close. A copy never waits for pinned
// memory that another copy uses: it then takes the driver's own way.
package vmm

// Files:
//
//	errors.go            errors, OpError, PairError; package driver's names under this package's
//	device.go            Open; Device: Info, Lookup, Supports, MemInfo, Sync, Do, KeepOpen, Close
//	devicename.go        what the names that Open takes stand for
//	name.go              names that a program gives to ranges: how long, and how texts quote them
//	addresslimit.go      SetAddressLimit: how many addresses the process may reserve
//	addresses.go         where the addresses of a reservation come from: an arena, or the driver
//	devicestate.go       what Devices share: a state for each driver and ordinal, the open device; waits for its context
//	memory.go            SetReleaseThreshold, Trim, SetLimit, OnPressure, which ask internal/bank
//	chunk.go             Chunk and Segment: Create, CreateOrReuse, Import, Export, dma-buf, fabric
//	reservation.go       Reservation: Reserve, Owner, Map, Hold, Changed, Generation; the error for bytes that are held
//	quarantine.go        slots that a failed undo has left, and access in doubt; how Trim repairs both
//	unmap.go             Unmap, UnmapNow, Clip: what may be given up, and the errors; sweeps, which unmap later and again
//	watch.go             Watch: calls when chunks are mapped and before they are unmapped
//	usedby.go            UsedBy; which devices and streams may use a reservation's memory now, by internal/users
//	waitforwork.go       waiting for the work of devices and streams, or recording events after all of it, as Clip does
//	pendingappends.go    AppendOns that have not run
//	closereservation.go  closing a reservation
//	grant.go             Grant, Revoke and Access of one reservation, and their undo
//	range.go             NewRange: RangeOptions, defaults, the largest chunk; Alloc, Append, SetLen, Hold, Close, Stats
//	lenhold.go           HoldLen: a hold of all bytes below Len, which tells of changes in their call
//	zero.go              RangeOptions.Zero: zeroing new and recycled memory, and waits before it
//	history.go           SetHistory and History; the log itself, and its options, are internal/history of the module
//	growth.go            Grow; what a growing range takes back, how much it asks internal/bank for; growth ahead
//	supply.go            Supplier: memory for a range from elsewhere than the device
//	background.go        the device's goroutine: one interval for all ranges, order of work, end; SetLogger
//	inside.go            the door for the other packages of the module
//	io.go                AppendOn, WaitWritten, ReadAt, WriteAt, ReadFrom, WriteTo, Host; of rows
//	sleep.go             Sleep and Wake: their steps, and the undo of each
//	sleepcopy.go         which contents of ranges that sleep go to host memory and back, by internal/staging
//	stopped.go           work that a library has stopped: what waits for it returns the error
//	stream.go            Stream, its priorities, WrapStream, Hold, Usable; whether a call may use a stream; Close
//	fence.go             the event at the end of one stream's work; waiting for one stream
//	onsync.go            OnSync: functions that are called after the program's own waits
//	event.go             Event; events of several processes
//	module.go            Module and Function: loaded code, its limits and launches
//	graph.go             BeginCapture, EndCapture, by internal/order; Graph and GraphExec, and what they remember
//	allocation.go        Allocation: memory in no reservation that graphs remember
//	copy.go              CopyIn, CopyOut, Copy2D, Pitch; checks of memory that a copy, launch or graph uses, and its lock
//	lockspans.go         LockSpans: locking spans for the program's own calls
//	pinned.go            AllocPinned, Pinned: page-locked memory, kept until the device closes
//	mirror.go            Mirror: a copy of device memory in host memory, written back
//	copypeer.go          CopyPeer: copies between devices without access
//	peers.go             PlanPeers, EnablePeers, of any Memory; EnableLegacyPeers, of cuMemAlloc's
//	topology.go          Topology: which devices reach each other
//	layout.go            Layout and Tensor; in what two Layouts differ, but for the fields of elements
//	dtype.go             the fields of struct elements as NumPy's dtype; in which field two differ
//	stats.go             Stats and Report: which counters and peaks of internal/count they show; ResetPeaks
//
// In vmm/internal, without a Device or Range:
//
//	bank/bank.go         the cache: what enters it, how much stays; the limit and its error; what unused memory is released
//	bank/memory.go       Memory and its references; creating memory, or taking cached memory (Obtain); refused releases
//	bank/outside.go      plain memory, and pools of the driver's: how they count against the bounds
//	bank/turn.go         the turn of an operation that lacks memory: functions of OnPressure, how long others wait
//	freelist             cached pieces by kind, size and age: which one a growth takes, and which one leaves first
//	count                the counters behind Stats; each number of bytes has its peak, whether Stats shows it or not
//	sizes                by how much a range grows, and in chunks of what sizes, within limits from range.go
//	slots                the table of what is mapped in a reservation, and states; its callers word the errors
//	grants               which devices may access a reservation's memory; changes under way, and in doubt
//	users/users.go       which devices and streams use it, and have to be waited for; AppendOns that have not run
//	users/spans.go       spans that LockSpans has locked
//	users/copies.go      the library's own copies under way
//	users/lows.go        how far Len has moved down while a read is under way
//	holds                holds of bytes, by name, and the functions to be told of changes
//	byaddress            which reservation an address lies in
//	arena/arena.go       addresses of many reservations, out of few of the driver's
//	arena/spans.go       which spans of one are free
//	rows                 where rows lie that have a pitch
//	staging/staging.go   large copies through pinned memory: from what size, by how many processors
//	staging/lane.go      one processor's part: its blocks, and their order
//	hostcopy             host memory for ranges that sleep
//	order/stream.go      which work comes before which: Stream.Point, After and Finished, also of wrapped handles
//	order/after.go       which events of other streams an event comes after
//	order/room.go        how many operations a stream takes before a copy waits
//	order/fence.go       events of the driver, of which it has a pool, and fences made of them
//	order/capture.go     captures: which streams are in one, how they begin and end; their errors are in order/device.go
//	order/gate.go        the gate that keeps captures apart from waits, records and queries
//	lock                 the order of the locks below

// Lock order:
//
//	Mirror.mu                copies between a Mirror and the memory that it mirrors
//	  Reservation.closeMu    Close, Clip, Sleep and Wake; SetLen downwards with Zero
//	    Reservation.grantMu  Close, Sleep and Wake; Grant, Revoke and EnablePeers
//	      Range.growMu       changes of Cap; a growth obtains memory, and maps it
//	        Range.lenMu      changes of Len
//	          Bank.releasing            one goroutine looks for memory to release
//	            Reservation.sweepMu     retirements come to their end
//	              Reservation.mappingMu the driver's calls that map, unmap, set access
//	                Reservation.mu
//	      legacyPairs.mu           EnableLegacyPeers and its end; the counts of pairs
//	      Module.mu
//	      graphHandle.mu           of a Graph, then of a GraphExec
//	      Stream.mu
//	        deviceState.openMu             the driver opens its device
//	          order.Stream.roomMu          copies that wait for room in a stream
//	            order.Gate                 captures begin, are joined or end
//	              Gate.streamsMu           the driver is asked about streams that others may capture
//	              Event.mu, Reservation.mu
//	                Device.mu
//	                  process.mu
//	                    Bank.mu, order.Device.mu
//	                      staging.Lanes, pinnedCache.mu, World.mu, count.Counters
//
// Of package bank driverPool.changes comes after Bank.releasing, and before Bank.mu. It is held while a pool of the
// driver's reserves or releases, and while it is asked how much it has.
//
// The levels of vmm/internal/lock are this tree from top to bottom; in the race build a
// goroutine that takes a lock out of order panics, and so does one that begins a wait with a lock
// that is not listed here. Of several ranges each kind is taken in the order in which the ranges
// were made. These are held across a wait for the device:
//
//	Mirror.mu, Reservation.closeMu and grantMu
//	lenMu               by Append and AppendOn, for their own bytes
//	growMu, mappingMu   with RangeOptions.Zero, for the fill alone, which no other work
//	                    comes before
//	Stream.mu           for reading, if no event could be recorded
//	Module.mu           by Close, for work that may run the module's kernels
//	legacyPairs.mu, graphHandle.mu   around driver calls
//
// None is held across a callback, except those of Watch, which run with mappingMu, and with what
// its holder has, from closeMu to sweepMu, and those of HoldLen, which run with what a change holds:
// mostly Reservation.mu, and Range.lenMu for a Len. Reservation.mu and what comes after it are not
// held even across a driver call, except staging.Lanes, which asks events. The lock of the arenas of
// addresses is held across Reserve and Free; process.mu is below it.
//
// Whatever must wait for work or copies marks what it takes (a retirement), gives
// up all other locks, waits, and looks again. The device's goroutine, for which all ranges of
// the device wait, only tries the locks of a range.
//
// Calls that give up memory wait for the spans that LockSpans has locked (users.Spans).
//
// The library's own copies take no lock: they are counted (users.Copies). Whatever takes
// memory away marks it first and then waits for the copies that began before.
