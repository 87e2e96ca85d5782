// Package shareable shows one process's device memory to others, also while it
// grows.
//
// # Which way to take
//
//	Send, Receive      one range as it is now, over a connection that you have
//	Publish, Attach    a name that others look up, and a View that follows growth
//
// The owner makes a [Server] with [Listen] and publishes a range that was made
// with vmm.ShareFD. From then on it appends as before: a goroutine of the
// [Publication] sees new memory and new lengths, exports chunks in the
// background, and tells the readers. A reader attaches and gets a [View], with
// an address of its own that never moves.
//
// # What a reader sees
//
// Every chunk of the range, not only the first: one handle never covers a range
// that grew. Len is what the owner has finished writing, as far as it is mapped
// here. It lies on a page that the owner shares for reading, so looking at it
// takes no system call, and a killed owner leaves nothing half done there. The
// socket carries chunks, never lengths.
//
//	append -> Len moves -> the page: done, a futex wake        -> View.Len, Wait, WaitOn
//	grow   -> Changed   -> the socket: CHUNKS with descriptors -> import, map, set access
//	Clip   -> Changed   -> the page: generation; RETIRE        -> unmap, acknowledge
//
// While something is published the range holds the published bytes
// (vmm.Range.Hold): it can grow, but not shrink below them until
// [Publication.Retire] has made the readers let go.
//
// # Whom to trust
//
// On the host the kernel keeps readers of a vmm.ShareReadOnly range from
// writing. On CUDA a descriptor carries no rights: whoever has it can write. A
// server looks at who connects before it reads anything, and both sides bound
// what the other can cost them. docs/sharing.md has the rest.
//
// # Lock order
//
//	Publication.step (one change of what is published) -> Publication.mu
//	-> Server.mu, keeper.mu, session.mu
//	View.closer, pins.mu -> View.mu
//
// Of these step is held across calls into the driver, and pins.mu while a
// stream is told to wait; the others across none, and none while a peer is
// written to.
package shareable
