// Package shareable lets other processes map a range of device memory, and
// follow it while it grows.
//
// # Which functions to use
//
//	Send, Receive      one range as it is now, over a connection that you have
//	Publish, Attach    a range by name, and a View that follows its growth
//
// Package store, beside this one, keeps memory that outlives the process that wrote it.
// Package ipc has CUDA's older ways to share.
//
// The process whose memory it is, the owner, makes a [Server] with [Listen] and
// publishes a range that was made with vmm.ShareFD. After that it appends as
// before: a goroutine of the [Publication] notices new memory and new lengths,
// exports the chunks in the background and sends them to the readers. A reader
// attaches and gets a [View] at an address of its own that never moves.
//
// # Words
//
//	owner, reader    the process whose memory it is, and one that maps it
//	object           what a name stands for: a Publication of the owner's, a View of a reader's
//	chunk            memory of one allocation, with a descriptor and an id of its own
//	control page     the words that the owner changes and the readers look at
//	retire           to have all readers unmap memory before the owner takes it back
//	generation       how often that was done; a length belongs to one generation
//	attachment       what the owner knows about one reader of one object
//
// # What a reader sees
//
// A reader maps every chunk of the range: one handle never covers a range that
// has grown. Len is what the owner has finished writing, as far as it is mapped
// in the reader. The length lies on a control page that the owner shares for
// reading. So reading it takes no system call, and an owner that is killed leaves
// nothing half written there. The socket carries chunks, never lengths.
//
//	append -> Len moves -> the page: length; a byte to wake it -> View.Len, Wait, WaitOn
//	grow   -> Changed   -> the socket: CHUNKS with descriptors -> import, map, set access
//	Clip   -> Changed   -> the page: generation; RETIRE        -> unmap, acknowledge
//
// While a range is published, its published bytes are held (vmm.Range.Hold): it
// can grow, but it cannot shrink below them until [Publication.Retire] has made
// the readers unmap.
//
// # Trust
//
// On the host the kernel keeps readers of a vmm.ShareReadOnly range from
// writing. On CUDA a descriptor carries no rights: any process that has it can write. A
// server checks the user at the other end before it reads anything, and both
// sides limit what the other can cost them. docs/sharing.md has the details.
package shareable

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
// while a frame is written to a peer. A method whose name ends in Exclusive runs inside
// Publication.runExclusive; one that ends in Locked needs the lock that its comment names.
