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
//	Client.Get       a [Buffer]: the object mapped here, for reading
//	Client.List      what there is; also Stat, Watch
//	Client.Delete    no name any more; the memory goes with the last Buffer
//
// # States of an object
//
//	written   it has a Writer, alone; Get needs GetOptions.Unsafe
//	open      durable and without a Writer, until Client.Append
//	sealed    neither length nor bytes change any more
//	deleted   without a name; it goes with its last Buffer
//
// A Writer that ends, also with its process, leaves an object that is durable open. Any
// other that is not sealed goes, and what waits for it gets shareable.ErrAborted.
//
// # Trust
//
// A client that gets an object can write to it: on CUDA a descriptor carries no rights, and
// on the host a store passes the same one to readers and to writers. Access and seals are
// kept against mistakes. Options.UIDs says which users may connect; docs/store.md has the
// rest, and what each failure leaves.
package store

// Lock order:
//
//	Server.mu       what there is; held for no call of the driver and no write to a client
//	  watcher.mu
//
//	Writer.closing
//	  Writer.exclusive    what is published; held across waits for work
//	    Writer.mu
//
//	Client.connecting
//	  Client.mu
