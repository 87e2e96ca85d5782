// Package shareable lets other processes map a range of device memory, and
// follow it while it grows.
//
// # Which functions to use
//
//	Send, Receive      one range as it is now, over a connection that you have
//	Publish, Attach    a range by name, and a View that follows its growth
//
// Package shareable/store keeps memory that outlives the process that wrote it.
// Package shareable/ipc has CUDA's older ways to share.
//
// The owner, which is the process that has the memory, makes a [Server] with
// [Listen] and publishes a range made with vmm.ShareFD. Then it appends as before.
// A goroutine of the [Publication] notices new memory and new lengths, exports the
// chunks in the background and sends them to the readers. A reader attaches and
// gets a [View] at an address of its own that never moves.
//
// # Words
//
//	owner, reader    the process that has the memory, and one that maps it
//	object           what a name stands for: the owner's Publication, a reader's View
//	chunk            memory of one allocation, with a descriptor and an id of its own
//	control page     the words that the owner changes and the readers look at
//	retire           to have all readers unmap memory before the owner takes it back
//	generation       how often that was done; a length belongs to one generation
//	attachment       what the owner knows about one reader of one object
//
// # What a reader sees
//
// A reader maps every chunk of the range, because one handle never covers a range
// that has grown. Len is what the owner has finished writing and the reader has
// mapped. The length lies on a control page that the owner shares for reading. So
// reading it takes no system call, and an owner that is killed leaves nothing half
// written there. The socket carries chunks, never lengths.
//
//	append -> Len moves -> the page: length; a byte to wake it -> View.Len, Wait, WaitOn
//	grow   -> Changed   -> the socket: CHUNKS with descriptors -> import, map, set access
//	Clip   -> Changed   -> the page: generation; RETIRE        -> unmap, acknowledge
//
// The published bytes of a range are held (vmm.Range.Hold): the range can grow,
// but cannot shrink below them until [Publication.Retire] has made the readers
// unmap.
//
// # Trust
//
// On the host the kernel keeps readers of a vmm.ShareReadOnly range from
// writing. On CUDA a descriptor carries no rights: any process that has it can write. A
// server checks the user at the other end before it reads anything, and both
// sides limit what the other can cost them. docs/guides/sharing.md has the details.
package shareable

// Files:
//
//	options.go             options of Listen and Publish; the limits and timeouts that are options, and their defaults
//	errors.go              the errors
//	server.go              Server: Listen, Close, and what it has
//	connect.go             connecting to a server
//	client.go              a client of a store: a connection for requests
//	stats.go               Stats of a Server, and Readers
//	accept.go              accepting connections, refusing and closing them; ServeConn
//	idle.go                how long a connection may be idle, a store's client longer; places kept for operators
//	charge.go              what counts for a user against MaxBytesPerUID
//	object.go              what readers attach to: chunks, lengths, its readers
//	storeobject.go         the objects that readers of a store attach to; the door for package store
//	leasepage_linux.go     the control pages of a store's writers
//	restore_linux.go       objects of a store as a new server can make them again
//	publication.go         an object that follows a range: Publish, Flush, Close
//	span.go                an object that is a part of a reservation: PublishSpan
//	chunks.go              the list of published chunks; exporting them ahead
//	publishafter.go        PublishAfter: lengths that are published once work has run
//	retire.go              Retire: taking memory back from the readers
//	seal.go                Seal: a length that no longer changes
//	session.go             one connection on the owner's side: requests and events
//	sessionend.go          its end: the reader is told, and counts for a Span until it has let go
//	attachment.go          what one reader has of a publication, its next frame, its AckTimeout
//	fdcache.go             open descriptors of exported chunks
//	fdcache_linux.go       how many descriptors there may be; closing and copying one
//	send.go                Send: one range as it is now
//	receive.go             Receive
//	controlpage_linux.go   the control page, in the owner and in a reader
//	controlpage_unsafe.go  its words
//	wakereaders.go         waking the readers that wait
//	wakesocket_linux.go    the socket for that, in the owner and in a reader
//	attach.go              Attach and its options
//	handshake.go           the reader's side from HELLO to a View
//	list.go                List: what a server publishes
//	ping.go                a request through a store, without a device
//	attachwait.go          an Attach that waits for the owner, the name and the seal
//	reattach.go            Reattach: a new View after a restart of the owner
//	readerconn.go          a reader's side of a connection, and its goroutine; how many may be left behind
//	spare.go               a connection made ahead of its Attach; store/get.go keeps one
//	again.go               connecting again to the server that replaces one that has ended
//	viewagain.go           a View that does
//	view.go                View: state, Len, Close
//	viewframes.go          what a View does with the owner's frames (map, unmap, seal), and when the connection ends
//	shortage.go            how long a View lacks a free descriptor
//	viewread.go            the bytes: ReadAt, WriteAt, Host, Snapshot; Tensor and Layout
//	viewwait.go            Wait, and watching the page
//	viewgrant.go           access for more devices
//	streamwait.go          WaitOn: a stream that waits for a length
//	streamwait_unsafe.go   the words that such a stream waits for
//	unsupported.go         systems other than Linux

// Lock order:
//
//	Publication.exclusive        one change of what is published at a time
//	session.sending              one frame of an attachment at a time
//	  Publication.mu
//	    Server.mu
//	    fdCache.mu
//	    session.mu
//	wakeList.mu
//	View.closeMu
//	readerConn.working           one frame of the owner at a time
//	  View.mu
//	    readerConn.mu
//	streamWaits.mu
//	  View.mu
//
// Publication.exclusive and readerConn.working are held across driver calls, streamWaits.mu while a
// wait is queued on a stream, and session.sending while the driver is asked what memory is free. No
// other lock is held across a driver call, and of these only readerConn.working and session.sending
// while a frame is written to a peer. Publication.lenRaised tries mu with locks of the range held, so
// what has mu waits for nothing. A method whose name ends in Exclusive runs inside
// Publication.runExclusive; one that ends in Locked needs the lock that its comment names.
