// Package store keeps named buffers of device memory for many processes: one makes a
// buffer and seals it, others get it by its name. The memory belongs to the store, so it
// outlives the process that wrote it.
//
// A [Server] owns the memory. It has no context on any device, so no fault can take the
// memory with it. It runs in a process of its own, cmd/vmmstored, or in the program. A
// [Client] makes objects and gets them, over a socket in both cases.
//
//	Client.Create    a new object and its [Writer]
//	Client.Append    a Writer of an object that is durable, where the last one has ended
//	Client.Get       a [shareable.View]: the object mapped here, for reading
//	Client.List      what there is; also Stat, Watch
//	Client.Delete    no name any more; the memory goes with the last View
//
// # States of an object
//
//	written   it has a Writer, alone; Get needs GetOptions.Unsafe
//	open      durable and without a Writer, until Client.Append
//	sealed    neither length nor bytes change any more
//	deleted   without a name; it goes with its last View
//
// A Writer that ends, also with its process, leaves an object that is durable open. Any
// other that is not sealed goes, and what waits for it gets shareable.ErrAborted.
//
// # Trust
//
// A client that gets an object can write to it: on CUDA a descriptor carries no rights, and
// on the host a store passes the same one to readers and to writers. Access and seals are
// kept against mistakes. Options.UIDs says which users may connect; docs/guides/store.md has the
// rest, and what each failure leaves.
package store

// Files:
//
//	options.go             options of the server, and of Create, Get, Delete: limits, leases
//	server.go              Server: what it has; Listen, Close; its requests; the end of a connection
//	stats.go               Stats: what is counted, how it is sent, for expvar and for slog
//	report.go              the Report of a server
//	ping_linux.go          Ping, which needs no device
//	entry.go               an object: made, named, deleted
//	memory.go              an object's memory: created, counted against limits, freed
//	member.go              the server as a member of its own budget: what counts, and what it gives
//	query.go               QUERY: which objects a client asks for, and what the reply has of each
//	lease.go               the right to write: given, waited for, ended
//	fence.go               memory of a writer without a lease: nothing writes to it while that may run
//	renew.go               the copy of such memory that a client makes
//	exit_linux.go          whether a process has ended; waiting for that when a writer's connection ends
//	exit_other.go          the same on other systems
//	waits.go               the server: requests that wait for a seal
//	evict.go               deleting what is not in use
//	held.go                memory of objects that are gone, which clients keep
//	keeper.go              KeeperOptions
//	keeper_linux.go        Keeper: the process that has the socket, starts what serves, and waits for it
//	kept_linux.go          ServeKept, in the process that a Keeper starts
//	keptmessages_linux.go  messages between a server and its keeper; what the keeper keeps
//	records_linux.go       what a server tells its keeper before it promises it
//	restore_linux.go       how the next server continues with that, and clients with it
//	other.go               systems other than Linux
//	id.go                  ID; what a call means by a name, an ID or @ and a number
//	client.go              Client and its connection for requests
//	connect_linux.go       Server.Connect: a Client in the server's process
//	connect_other.go       the same on other systems
//	create.go              Create, Append and OpenAppend: a Writer and its lease
//	writer.go              Writer
//	publish.go             publishing what a Writer's range shows, and what ends that
//	writerlease.go         whether a Writer has its lease still: signs of life, and asking the server
//	writermemory.go        the supplier of a Writer's range
//	get.go                 Get and GetAll; the connection that is kept ready for the next Get
//	info.go                List, Stat, Link, Delete, Stats
//	watch.go               the client: Watch
//	watchers.go            the server: events for those that watch, and how many may queue

// Lock order:
//
//	Server.mu       what there is; held for no call of the driver and no write to a client
//	  watcher.mu
//	  those of package vmm that count memory
//
//	Writer.closing
//	  Writer.exclusive    what is published; held across waits for work, and tried with locks of the range held
//	    Writer.mu         no lock of the range is taken under it
//
//	Client.connecting
//	  Client.mu
