// Package host is host memory as a driver: growable, shareable arrays in
// ordinary memory, under the rules of a card. It is no mock. Programs without
// a GPU run on it, and what breaks a rule here would break it on the card.
//
// It is pure Go on Linux; elsewhere every call answers driver.ErrNotSupported.
// All devices of a [Driver] share the process's one page table, so what a
// device may do is kept in a ledger, and the page table allows what any of
// them may:
//
//	on the card              here
//	address range            anonymous mapping without access
//	physical memory          memfd, sealed against shrinking and growing
//	map                      MAP_FIXED|MAP_SHARED over the range, without access
//	set access               the ledger; mprotect with the union of it
//	copies, fills            checked against the ledger when they are queued
//	capacity of a device     a count, charged at Create and AllocPlain
//	stream                   a queue and, while it is not empty, a goroutine
//	illegal address          all devices are lost, by bookkeeping: no fault happens
//	exported descriptor      the memfd opened again, for reading only if shared so
//	primary context          what the open Devices of an ordinal share
//	capture                  checked and thrown away; a wait destroys it, and
//	                         plain memory does unless it is relaxed
//	plain and pinned memory  anonymous mappings, open to every device
//	peer access to it        written down, and needed by nobody
//
// A Driver stands for a process: once memory was taken from under work of one
// device, all its devices are lost, as CUDA loses all of a process. A new Driver
// is well.
//
// Where the card's answer is a matter of luck the strict one is given: work is
// always late, and memory taken from under it always loses the device.
//
// Different from the card: memory is taken from the system when it is first
// touched, not at Create, so all devices together can promise more than the
// machine has. Memory that another process created is counted there alone. An
// event recorded in a capture draws no other stream into it. What a thread-local
// capture forbids its thread is forbidden to all, since a goroutine has no thread. A fault that a
// program's own Go pointer meets, through HostBytes, is the program's end.
//
// The kernel limits the mappings of a process (vm.max_map_count). Each chunk
// takes one and each gap between chunks one, so they are counted, for all
// Drivers together and beside what else the process has mapped, and refused
// with driver.ErrLimit before the kernel would: at its limit no undo works. All
// Drivers together reserve at most 96 TiB, which leaves Go's heap its share.
//
// Where the system has promised more memory than it has, touching a page that
// is not there ends the process with SIGBUS. Large copies into untouched memory
// answer driver.ErrOutOfMemory instead; small ones, fills, copies on streams,
// and stores through HostBytes cannot.
//
// Exported memory counts as used until the last descriptor and mapping of it is
// gone. The kernel tells by granting a lease (fcntl F_SETLEASE), so sharing is
// not supported where fs.leases-enable is 0. A process that changes its user
// may no longer ask about what it created before: that memory counts as used
// until it has its old user again. Whoever opens the file while it is asked
// about makes the kernel send this process a SIGURG, which does nothing unless
// it is handled.
//
// Lock order: Driver.mem (addresses, handles, access), then Driver.work
// (streams, events, captures), then the process's ledger of mappings and
// addresses. None is held while bytes move. Work is
// checked and queued under mem held shared, and memory is taken away under mem
// held whole, so whoever takes it away sees all the work that passed a check.
package host
